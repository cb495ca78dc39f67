"""Every setting: name, type, default, description, and where its value comes from.

Flags override the environment, which overrides `.env.<environment>`, which overrides `.env`, which overrides
`[tool.packhorse]` in pyproject.toml. Unknown names are rejected, so that a misspelt limit is not silently ignored.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from packhorse.core.plan import TERMINAL, Backoff, Defaults
from packhorse.define.options import UNITS, Revive, seconds, size
from packhorse.errors import SettingError
from packhorse.log import FORMATS, LEVELS
from packhorse.outbound.addresses import Allow

REDIS_PREFIX = "packhorse:"  # default prefix of every key in Redis
DEVELOPMENT, PRODUCTION = "development", "production"
DEV_PORT = 3003  # of `packhorse dev`, with or without an environment
ENVIRONMENTS = {DEVELOPMENT: {"prefix": "dev:", "port": str(DEV_PORT)}, PRODUCTION: {"prefix": "prod:", "port": "3002"}}
"""The defaults that `PACKHORSE_ENV` changes. Without it they are those of `Settings`."""
REDIS = "redis"  # the value of `store` with which the address comes from the variables below
REDIS_SCHEMES = ["unix"] + [
    f"{name}{tls}{sort}" for name in ("redis", "valkey") for tls in ("", "s") for sort in ("", "+cluster", "+sentinel")
]
REDIS_URL, REDIS_PASSWORD, REDIS_DB = REDIS_NAMES = ("REDIS_URL", "REDIS_PASSWORD", "REDIS_DB")
REDIS_VIEWS = ("converter", "video")  # apps whose own Redis keys can be kept beside ours
PREFIX = "PACKHORSE_"
LOOPBACK = "127.0.0.0/8,::1"  # what webhooks may also call in `packhorse dev`: this machine
POSITIVE = frozenset(
    {"lease", "slots", "recycle", "timeout", "deadline", "pending", "sweep", "samples", "body_silence"}
    | {f"revive_{name}" for name in ("times", "backoff", "budget", "per")}
)
FLAGS = {"1": True, "yes": True, "true": True, "on": True, "0": False, "no": False, "false": False, "off": False}
FOLDER = ".packhorse"
HIDDEN = "***"
MIN_SECRET_KEY = 32  # minimum length of a secret key in characters, so that it cannot be guessed
FILE_SCHEME = "file:"
S3_SCHEME = "s3://"
DEV_FILE = f"{FOLDER}/dev"
KEY_FILE = f"{FOLDER}/secret-key"
"""Where `packhorse dev` stores a generated secret key. Every process started in the same folder reads it."""


def queues(text: str) -> dict[str, int]:
    """Parse ``onnx=2,bie=1``. A name without a number means one slot."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, count = part.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,63}", name) or not (count or "1").isdigit() or int(count or 1) < 1:
            raise ValueError(f"{part!r} is not NAME=SLOTS, such as onnx=2")
        found[name] = int(count or 1)
    return found


def port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise ValueError(f"{text!r} is not a port number from 0 to 65535")
    return int(text)


def flag(text: str) -> bool:
    if text.lower() not in FLAGS:
        raise ValueError(f"{text!r} is neither yes nor no")
    return FLAGS[text.lower()]


def share(text: str) -> float:
    found = float(text)
    if not 0 < found <= 1:
        raise ValueError("it must be more than 0 and at most 1")
    return found


def proxies(text: str) -> str:
    for part in filter(None, (part.strip() for part in text.split(","))):
        ip_network(part)
    return text


def secret_keys(text: str) -> list[str]:
    """The keys of ``secret_key``: the first is in use, the others are those it replaces.

    If a part would be too short for a key, the whole text is one key: a passphrase may contain commas.
    """
    parts = [each.strip() for each in text.split(",")]
    if all(len(each) >= MIN_SECRET_KEY for each in parts):
        return parts if len(parts) > 1 else [text]
    return [text] if text else []


def secret_text(text: str) -> str:
    if any(len(each) < MIN_SECRET_KEY for each in secret_keys(text)):
        raise ValueError(f"a secret key needs at least {MIN_SECRET_KEY} characters")
    return text


def allow_list(text: str) -> str:
    Allow.of(text)
    return text


def input_folders(text: str) -> str:
    """Absolute folders and s3:// prefixes, with commas between them."""
    for part in listed(text):
        path = part if part.startswith("/") else ""
        if not path and not part.startswith(S3_SCHEME):
            raise ValueError(f"{part!r} is neither an absolute folder nor s3://BUCKET/PREFIX")
        if path and os.path.normpath(path) in ("/", "//"):
            raise ValueError("/ would make every file of this machine readable; name the folders that callers may read")
    return text


def listed(text: str) -> list[str]:
    """The parts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def codes(text: str) -> tuple[str, ...]:
    found = tuple(filter(None, (part.strip() for part in text.split(","))))
    Revive(codes=found).to_plan()
    return found


def redis_views(text: str) -> dict[str, str]:
    """Parse ``video=momentry:,converter=``: the prefix of the keys of each view, which may be empty."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, prefix = part.partition("=")
        if name not in REDIS_VIEWS or not equals:
            raise ValueError(f"{part!r} is not VIEW=PREFIX, such as video=momentry:; views: {', '.join(REDIS_VIEWS)}")
        if name in found or prefix in found.values():
            raise ValueError("each view, and each prefix, can be named once")
        found[name] = prefix
    return found


def command(text: str) -> str:
    shlex.split(text)
    return text


def environment(text: str) -> str:
    if text and text.lower() not in ENVIRONMENTS:
        raise ValueError(f"it must be {' or '.join(ENVIRONMENTS)}, or empty")
    return text.lower()


def _optional_seconds(text: str) -> float | None:
    return seconds(text) if text.strip() else None


def color(text: str) -> str:
    if text and not re.fullmatch("#[0-9a-fA-F]{6}", text):
        raise ValueError("it must be a colour such as #1f5f5b")
    return text.lower()


def logo(text: str) -> str:
    if text and not text.endswith((".svg", ".png")):
        raise ValueError("it must be the path of an .svg or .png file")
    return text


def _word(words: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"it must be one of {', '.join(words)}")
        return text.lower()

    return parse


def _setting(default: Any, description: str, parse: Callable[[str], Any] = str, *, secret: bool = False) -> Any:
    make = default if callable(default) else lambda: default
    return field(
        default_factory=make, repr=not secret, metadata={"description": description, "parse": parse, "secret": secret}
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    app: str = _setting("", "Pipelines to run, as file.py or module:attribute. Empty: `dev` looks for a file")
    env: str = _setting(
        "",
        "development or production: sets the defaults of prefix and port, and the file that is read before .env "
        "(.env.development, .env.production)",
        environment,
    )
    store: str = _setting(
        lambda: f"sqlite://{Path.cwd() / FOLDER / 'packhorse.db'}",
        "URL of the store for jobs: sqlite:///path, postgresql://… or redis://…; "
        "or just redis: its address is in REDIS_URL, REDIS_PASSWORD and REDIS_DB",
    )
    prefix: str = _setting(
        REDIS_PREFIX,
        "Prefix of every key in Redis. {braces} choose the hash slot in a cluster. "
        "Default in development dev:, in production prod:",
    )
    redis_views: dict[str, str] = _setting(  # noqa: RUF009 (a default factory, made by _is)
        dict,
        "Views in Redis: keys in the format of an app, kept in addition to packhorse's, each with a prefix: "
        "video=momentry:,converter=",
        redis_views,
    )
    search: str = _setting(
        "auto",
        "Whether new jobs are found by file name, metadata and declared parameters: on, off, or auto. "
        "auto: on, except on Redis, where it takes 1 to 1.6 KB of memory per job",
        _word(("auto", "on", "off")),
    )
    blobs: str = _setting(
        lambda: f"file://{Path.cwd() / FOLDER / 'blobs'}",
        "URL of the object store for files: file:///path, s3://bucket or gs://bucket",
    )
    s3_access_key: str = _setting(
        "", "Access key ID for the S3 bucket. Empty: AWS_ACCESS_KEY_ID, which stages can read too"
    )
    s3_secret_key: str = _setting("", "Secret access key for the S3 bucket. Empty: AWS_SECRET_ACCESS_KEY", secret=True)
    scratch: str = _setting(
        lambda: str(Path.cwd() / FOLDER / "scratch"), "Folder for the working directories of running stages"
    )
    file_cache: int = _setting(
        1024**3,
        "Bytes of files from S3 or Google Cloud Storage that a worker keeps on its disk for up to 10 minutes, "
        "so that it loads each once for all stages of a job. 0: none",
        size,
    )
    url: str = _setting("", "URL of the server that the command line and the Python client call")
    key: str = _setting("", "API key that the command line and the Python client send", secret=True)
    host: str = _setting("127.0.0.1", "Address to listen on")
    log_format: str = _setting(
        "text", "Log format of serve and worker: text, or json with one object per line", _word(FORMATS)
    )
    log_level: str = _setting(
        "info", "Lowest log level: debug (adds one line per request), info, warning or error", _word(LEVELS)
    )
    metrics_port: int = _setting(0, "Port of a worker's own /metrics endpoint, which needs no key. 0: off", port)
    metrics_host: str = _setting(
        "127.0.0.1", "Address of a worker's own /metrics endpoint. Metrics need no key: choose a private address"
    )
    port: int = _setting(3002, "Port to listen on. Default in development, and of dev: 3003", port)
    keyless: bool = _setting(False, "Serve without API keys, to this machine only, as dev does", flag)
    trust_proxy: str = _setting(
        "", "Addresses or networks of proxies whose X-Forwarded-For is trusted, such as 10.0.0.0/8", proxies
    )
    api_limit: int = _setting(30_000, "Maximum requests per key in 5 minutes. 0: unlimited", int)
    streams_limit: int = _setting(2500, "Maximum open event streams per key on one server. 0: unlimited", int)
    failed_limit: int = _setting(20, "Maximum requests without a valid key per address in a minute. 0: unlimited", int)
    session: float = _setting(43_200.0, "Lifetime of a browser session, in seconds", seconds)
    session_idle: float = _setting(
        7_200.0, "Seconds without a request after which a browser session ends. 0: it lasts its lifetime", seconds
    )
    audit_keep: int = _setting(
        100_000, "Maximum number of audit entries to keep per tenant. The oldest are deleted first", int
    )
    audit_age: float = _setting(365 * 86_400.0, "Retention of audit entries", seconds)
    sessions_limit: int = _setting(100, "Maximum browser sessions per key. The oldest end first. 0: unlimited", int)
    token_share: float = _setting(
        0.5,
        "Maximum share of the limits of its key or user that one token can use. A single larger file can use all of it",
        share,
    )
    tokens_limit: int = _setting(10_000, "Maximum tokens created per key in 24 hours. 0: unlimited", int)
    queues: dict[str, int] = _setting(  # noqa: RUF009 (a default factory, made by _is)
        dict, "Slots per queue of a worker, such as onnx=2,bie=1. Empty: every queue of its app", queues
    )
    slots: int = _setting(lambda: os.cpu_count() or 1, "Slots of a queue without a number", int)
    lease: float = _setting(
        15.0,
        "Seconds without a heartbeat after which a worker counts as lost. It sends one every third of this time",
        seconds,
    )
    grace: float = _setting(10.0, "Seconds between asking a stage to stop and killing its process", seconds)
    drain: float = _setting(30.0, "Seconds a stopping worker waits for its running stages to finish", seconds)
    stage_user: str = _setting(
        "", "User that runs the stages, so that they cannot read files of the worker. Start the worker as root"
    )
    process_per: str = _setting(
        "worker",
        "Which stages can use the same process, one after another: all of the worker, or those of one tenant or job. "
        "tenant and job start more processes",
        _word(("worker", "tenant", "job")),
    )
    recycle: int = _setting(1000, "Number of stages a process runs before the worker replaces it", int)
    recycle_memory: int = _setting(
        0, "Memory in bytes above which the worker replaces a process after its stage. 0: never", size
    )
    retries: int = _setting(3, "Default number of retries of a stage after the first attempt", int)
    backoff: float = _setting(
        1.0, "Default delay before the first retry of a stage. It doubles with each retry", seconds
    )
    backoff_cap: float = _setting(60.0, "Maximum delay between retries of a stage", seconds)
    timeout: float = _setting(600.0, "Default time limit for one attempt of a stage", seconds)
    deadline: float = _setting(86_400.0, "Default time limit for a whole run", seconds)
    pending: float = _setting(
        86_400.0, "Default time limit until a worker starts a run. After that the run fails", seconds
    )
    keep: float = _setting(7 * 86_400.0, "Default retention of ended jobs", seconds)
    keep_completed: float | None = _setting(None, "Retention of completed jobs. Empty: as keep", _optional_seconds)
    keep_failed: float | None = _setting(None, "Retention of failed jobs. Empty: as keep", _optional_seconds)
    keep_cancelled: float | None = _setting(None, "Retention of cancelled jobs. Empty: as keep", _optional_seconds)
    failures_keep: float = _setting(30 * 86_400.0, "Retention of failure records, independent of their jobs", seconds)
    revive_codes: tuple[str, ...] = _setting(
        (), "Default failure codes that are retried automatically, such as HTTP_500,TIMEOUT", codes
    )
    revive_times: int = _setting(3, "Maximum automatic retries per job", int)
    revive_backoff: float = _setting(
        300.0, "Delay before the first automatic retry. It doubles with each retry", seconds
    )
    revive_budget: int = _setting(100, "Maximum automatic retries per failure fingerprint within revive_per", int)
    revive_per: float = _setting(3_600.0, "Time window for revive_budget", seconds)
    alert_command: str = _setting(
        "", "Command to run for each new kind of failure. It receives JSON on standard input", command
    )
    result_limit: int = _setting(256 * 1024, "Maximum size of a stage's result in bytes, without its files", size)
    artifacts_limit: int = _setting(
        10_000, "Maximum number of files that one attempt of a stage can publish, including its result", int
    )
    default_pipeline: str = _setting(
        "", "Pipeline of a submit without a pipeline name. Empty: the only published one, or the default of the app"
    )
    parameters_limit: int = _setting(256 * 1024, "Maximum size of a job's parameters in bytes, without its files", size)
    tenant_jobs: int = _setting(0, "Maximum unfinished jobs per tenant. 0: unlimited", int)
    tenant_bytes: int = _setting(
        0, "Maximum bytes of files per tenant: uploads and results of jobs that are not purged. 0: unlimited", size
    )
    tenant_schedules: int = _setting(1000, "Maximum schedules per tenant. 0: unlimited", int)
    schedule_interval: float = _setting(0.0, "Minimum seconds between two ticks of a schedule. 0: none", seconds)
    input_folders: str = _setting(
        "",
        "Folders and s3://BUCKET/PREFIX from which callers may submit files by path, such as /srv/videos,s3://inbox. "
        "Every key that may submit can read all of it. Empty: none",
        input_folders,
    )
    file_limit: int = _setting(2 * 1024**3, "Maximum size of one uploaded file in bytes", size)
    wait_limit: float = _setting(
        60.0, "Maximum seconds that a submit with `Prefer: wait` waits for the result", seconds
    )
    body_silence: float = _setting(30.0, "Seconds without data after which the server drops an upload", seconds)
    body_rate: int = _setting(1024, "Minimum average bytes per second of an upload, checked after body_silence", size)
    log_limit: int = _setting(1024**2, "Maximum log size per job in bytes. The oldest lines are deleted first", size)
    log_rate: int = _setting(
        256 * 1024, "Maximum bytes per second of a stage's output that its log keeps. The rest is only counted", size
    )
    downloads_per: str = _setting(
        "user",
        "Whether the download limits apply per user (the user_id of the job) or per key. A pipeline can override this",
        _word(("user", "key")),
    )
    downloads_at_once: int = _setting(10, "Maximum concurrent downloads per user or key. 0: unlimited", int)
    downloads_per_10s: int = _setting(5, "Maximum downloads started per user or key in 10 s. 0: unlimited", int)
    downloads_per_minute: int = _setting(20, "Maximum downloads started per user or key in 60 s. 0: unlimited", int)
    download_bytes_per_hour: int = _setting(
        1024**3, "Maximum bytes downloaded per user or key in an hour. 0: unlimited", size
    )
    download_bytes_per_day: int = _setting(
        6 * 1024**3, "Maximum bytes downloaded per user or key in 24 hours. 0: unlimited", size
    )
    download_timeout: float = _setting(300.0, "Time limit for one download. 0: none", seconds)
    brand_name: str = _setting("packhorse", "Name at the top of all pages of the web UI")
    brand_logo: str = _setting("", "SVG or PNG file that the web UI shows beside the name", logo)
    brand_color: str = _setting(
        "", "Colour of links and buttons in the web UI, such as #1f5f5b, adjusted for a readable contrast", color
    )
    publish_to: str = _setting(
        "",
        "Bucket or folder for the files that pipelines publish, at its root. Empty: PACKHORSE_BLOBS",
    )
    promote_to: str = _setting(
        "", "Destinations of promoted results: s3://, gs://, file:/// or https://; several as NAME=URL,…"
    )
    promote_token_url: str = _setting("", "Token endpoint of the HTTP file service (OAuth 2 client credentials)")
    promote_client_id: str = _setting("", "OAuth client ID for the HTTP file service")
    promote_client_secret: str = _setting("", "OAuth client secret for the HTTP file service", secret=True)
    promote_scope: str = _setting("", "OAuth scope to request. Empty: none")
    promote_timeout: float = _setting(
        60.0, "Seconds without a response after which a call to the HTTP file service fails", seconds
    )
    samples: int = _setting(100, "Number of CPU and memory samples to keep per job", int)
    secret_key: str = _setting(
        "",
        "Key that encrypts secret parameters and signs webhooks. The older keys that it replaces follow, separated by "
        "commas. Use the same value for every server and worker",
        secret_text,
        secret=True,
    )
    outbound_allow: str = _setting(
        "",
        "Hosts and networks that webhooks may call although they are not public, such as hooks.internal,10.1.0.0/16. "
        f"`packhorse dev` on SQLite adds {LOOPBACK}",
        allow_list,
    )
    runs_keep: float = _setting(30 * 86_400.0, "Retention of the runs of schedules", seconds)
    runs_limit: int = _setting(10_000, "Maximum number of runs to keep per schedule. The oldest are deleted first", int)
    sweep: float = _setting(5.0, "Seconds between clean-ups of expired jobs and unreferenced files", seconds)
    orphan_after: float = _setting(2 * 86_400.0, "Age at which objects that no job refers to are deleted", seconds)

    @property
    def is_searchable(self) -> bool:
        """Whether the jobs submitted here get search terms."""
        return self.search == "on" or (self.search == "auto" and self.store.partition(":")[0] not in REDIS_SCHEMES)

    @property
    def quotas(self) -> tuple[int, int] | None:
        """Unfinished jobs and bytes that a tenant may have; None if nothing has to be counted."""
        return (self.tenant_jobs, self.tenant_bytes) if self.tenant_jobs or self.tenant_bytes else None

    @cached_property
    def defaults(self) -> Defaults:
        """Values for options that a pipeline leaves open. Cached, because every submit reads them."""
        backoff = Backoff(self.backoff, max(self.backoff, self.backoff_cap))
        said = zip(sorted(TERMINAL), (self.keep_cancelled, self.keep_completed, self.keep_failed), strict=True)
        kept = {status: seconds for status, seconds in said if seconds is not None}
        revive = Revive(
            codes=self.revive_codes,
            times=self.revive_times,
            backoff=self.revive_backoff,
            budget=self.revive_budget,
            per=self.revive_per,
        ).to_plan()
        return Defaults(
            retries=self.retries,
            backoff=backoff,
            timeout=self.timeout,
            deadline=self.deadline,
            keep=self.keep,
            kept=kept,
            pending=self.pending,
            revive=revive,
            has_destination=bool(self.publish_to),
        )


@dataclass(frozen=True)
class Loaded:
    settings: Settings
    origins: Mapping[str, str]
    """Where the value of each setting comes from."""
    borrowed: frozenset[str] = frozenset()
    """Variables of the environment with other names that a setting was read from."""


def load(
    flags: Mapping[str, Any] | None = None, *, env: Mapping[str, str] | None = None, folder: Path | None = None
) -> Loaded:
    folder = folder or Path.cwd()
    key_file = folder / KEY_FILE
    variables = [("environment", os.environ if env is None else env), (".env", _from_file(folder / ".env"))]
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    pyproject = _from_pyproject(folder)
    chosen = _choose_environment([("flag", given), *_own(variables), ("pyproject.toml", pyproject)])
    if chosen:
        variables.insert(1, (f".env.{chosen}", _from_environment_file(folder, chosen)))
    values: dict[str, Any] = {}
    origins = {each.name: "default" for each in fields(Settings)}
    sources = [
        ("flag", given),
        *_own(variables),
        ("pyproject.toml", pyproject),
        (KEY_FILE, {"secret_key": key_file.read_text().strip()} if key_file.is_file() else {}),
        (f"default in {chosen}", ENVIRONMENTS.get(chosen, {})),
    ]
    for origin, found in reversed(sources):
        for name, value in found.items():
            values[name] = _parse(name, value, origin)
            origins[name] = origin
    borrowed: frozenset[str] = frozenset()
    if values.get("store") == REDIS:
        said = {name: place for place, found in reversed(variables) for name in REDIS_NAMES if found.get(name)}
        values["store"] = _redis_url({name: dict(variables)[place][name] for name, place in said.items()})
        origins["store"] += f", with {', '.join(f'{name} ({place})' for name, place in sorted(said.items()))}"
        borrowed = frozenset(said)
    return Loaded(Settings(**values), origins, borrowed)


def _own(variables: Sequence[tuple[str, Mapping[str, str]]]) -> list[tuple[str, dict[str, str]]]:
    return [(origin, _from_names(found)) for origin, found in variables]


def _choose_environment(sources: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The environment, before the file that is named after it is read. Empty if no source names one."""
    for origin, found in sources:
        if "env" in found:
            return str(_parse("env", found["env"], origin))
    return ""


def _from_environment_file(folder: Path, chosen: str) -> dict[str, str]:
    found = _from_file(folder / f".env.{chosen}")
    if found.get(f"{PREFIX}ENV", chosen) != chosen:
        message = f".env.{chosen} is read because the environment is {chosen}. It cannot set PACKHORSE_ENV to another."
        raise SettingError(message, name="env", value=found[f"{PREFIX}ENV"])
    return found


def _redis_url(found: Mapping[str, str]) -> str:
    """The URL with the password and the database, each of which must be given only once."""
    url, password, database = (found.get(name, "") for name in REDIS_NAMES)
    parts = urlsplit(url)
    if parts.scheme not in REDIS_SCHEMES:
        shown = f"is {without_secrets(url)!r}" if url else "is not set"
        raise _bad_redis(f"With PACKHORSE_STORE=redis, {REDIS_URL} must be such as redis://localhost:6379. It {shown}.")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, named = login.partition(":")
    if password and named and unquote(named) != password:
        raise _bad_redis(f"{REDIS_URL} and {REDIS_PASSWORD} have different passwords. Set only one of them.")
    if password:
        login = f"{user}:{quote(password, safe='')}"
    if database and not database.isdecimal():
        raise _bad_redis(f"{REDIS_DB} must be a number, such as 0, not {database!r}.")
    query = parse_qsl(parts.query, keep_blank_values=True)
    last = "" if parts.scheme == "unix" else parts.path.rpartition("/")[2]
    named = dict(query).get("db", last)
    if database and named.isdecimal() and int(named) != int(database):
        raise _bad_redis(f"{REDIS_URL} names the database {named}, and {REDIS_DB} is {database}. Set only one of them.")
    if int(database or 0) and not named.isdecimal():
        query.append(("db", database))
    place = f"{login}@{hosts}" if login else hosts
    return f"{parts.scheme}://{place}{parts.path}{f'?{urlencode(query)}' if query else ''}"


def _bad_redis(message: str) -> SettingError:
    return SettingError(message, name="store", value=REDIS)


def keep_secret_key(folder: Path | None = None) -> None:
    """Create the file with a random secret key, unless it exists."""
    path = (folder or Path.cwd()) / KEY_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as content:
            content.write(secrets.token_urlsafe(MIN_SECRET_KEY) + "\n")


def keep_dev_url(url: str, folder: Path | None = None) -> Path:
    """Note where this process's `packhorse dev` listens, for other commands in the same folder. Returns the file."""
    path = (folder or Path.cwd()) / DEV_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(f"{os.getpid()} {url}\n")
    new.replace(path)  # in one step: no reader sees half of it
    return path


def dev_url(folder: Path | None = None) -> str:
    """Where the `packhorse dev` of this folder listens; empty if none runs."""
    try:
        pid, _, url = ((folder or Path.cwd()) / DEV_FILE).read_text().strip().partition(" ")
        with contextlib.suppress(PermissionError):  # it is alive, and another user's
            os.kill(int(pid), 0)
    except (OSError, ValueError):  # no file, or its process was killed
        return ""
    return url


def dev_allow(settings: Settings) -> str:
    """What webhooks may call in `packhorse dev` although it is not public: a receiver is often on this machine, too.

    Not on a store that other machines share: the addresses in it mean their machines, not this one.
    """
    is_own = settings.store.startswith("sqlite:")
    return ",".join(filter(None, (settings.outbound_allow, LOOPBACK if is_own else "")))


def descriptions() -> dict[str, str]:
    """The description of each setting, by its name in the environment."""
    return {PREFIX + each.name.upper(): each.metadata["description"] for each in fields(Settings)}


def printable(settings: Settings) -> dict[str, Any]:
    """Every value as it may be printed: secrets, also those inside a URL, become asterisks."""
    found: dict[str, Any] = {}
    for each in fields(Settings):
        value = getattr(settings, each.name)
        if each.metadata["secret"]:
            value = HIDDEN if value else ""
        found[each.name] = without_secrets(value) if isinstance(value, str) else value
    return found


def env_texts(settings: Settings) -> dict[str, str]:
    """Every value as a person would write it in the environment, by its name there: 7d, 2GiB, 100_000."""
    shown = printable(settings)
    return {
        PREFIX + each.name.upper(): _env_text(shown[each.name], each.metadata["parse"]) for each in fields(Settings)
    }


def _env_text(value: Any, parse: Callable[[str], Any]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if parse in (seconds, _optional_seconds) and value:
        return shortest(value, UNITS)
    if parse is size and value:
        return shortest(value, {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4})
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 and parse is int else str(value)
    return f"{value:g}" if isinstance(value, float) else _as_text(value)


def shortest(value: float, units: Mapping[str, float]) -> str:
    """In the largest unit in which it is a whole number; else in the first, without an exponent."""
    for unit, worth in sorted(units.items(), key=lambda pair: -pair[1]):
        if value >= worth and (value / worth).is_integer():
            return f"{value / worth:.0f}{unit}"
    unit, worth = next(iter(units.items()))
    return f"{value / worth:.6f}".rstrip("0").rstrip(".") + unit


HARMLESS = "endpoint|region|path_style|schema|statement_cache_size|prefix|timeout|db"


def without_secrets(address: str) -> str:
    """The URL with asterisks for its password and for all query values except harmless ones."""
    address = re.sub(r"(?<=://)([^:/?#@]*):.*@", rf"\1:{HIDDEN}@", address)
    return re.sub(rf"(?<=[?&])(?!(?:{HARMLESS})=)([^=&#]*)=[^&#]*", rf"\1={HIDDEN}", address)


def _parse(name: str, value: Any, origin: str) -> Any:
    known = {each.name: each for each in fields(Settings)}
    if name not in known:
        close = get_close_matches(name, known)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"Known settings: {', '.join(known)}."
        raise SettingError(f"Unknown setting {name!r} ({origin}). {hint}", name=name, value=value)
    if not isinstance(value, str):
        value = _as_text(value)
    shown = HIDDEN if known[name].metadata["secret"] else value
    try:
        parsed = known[name].metadata["parse"](value)
    except ValueError as error:
        raise SettingError(
            f"Setting {name} ({origin}) cannot be {shown!r}: {error}.", name=name, value=shown
        ) from error
    if name in POSITIVE and parsed <= 0:
        raise SettingError(f"Setting {name} ({origin}) must be greater than zero.", name=name, value=value)
    if isinstance(parsed, int) and parsed < 0:
        raise SettingError(f"Setting {name} ({origin}) must not be negative.", name=name, value=value)
    return parsed


def _as_text(value: Any) -> str:
    """The value as it would be written in the environment."""
    if isinstance(value, Mapping):
        return ",".join(f"{k}={v}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _from_names(env: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(PREFIX).lower(): value for name, value in env.items() if name.startswith(PREFIX)}


def _from_file(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    pairs = (line.partition("=") for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    return {name.strip().removeprefix("export "): value.strip().strip("\"'") for name, _, value in pairs}


def _from_pyproject(folder: Path) -> dict[str, Any]:
    path = folder / "pyproject.toml"
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text()).get("tool", {}).get("packhorse", {})
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} is not valid TOML: {error}.", name="app", value="") from error
    return {name.replace("-", "_"): value for name, value in found.items()}
