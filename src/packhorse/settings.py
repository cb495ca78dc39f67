"""Every setting, once: its name, type, default and meaning; and where each value came from.

Flags win over the environment, which wins over `.env`, which wins over `[tool.packhorse]` in pyproject.toml. A name
that is not a setting is refused, because a misspelt limit that is silently ignored is worse than none.
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

from packhorse.core.plan import TERMINAL, Backoff, Defaults
from packhorse.define.durations import seconds, size
from packhorse.define.options import Revive
from packhorse.errors import SettingError
from packhorse.log import FORMATS, LEVELS
from packhorse.outbound.addresses import Allow

REDIS_PREFIX = "packhorse:"
"""What every key in a Redis begins with, unless a deployment says otherwise."""
PREFIX = "PACKHORSE_"
POSITIVE = frozenset(
    {
        "lease",
        "slots",
        "recycle",
        "timeout",
        "deadline",
        "pending",
        "revive_times",
        "revive_backoff",
        "revive_budget",
        "revive_per",
        "sweep",
        "samples",
        "body_silence",
    }
)
FLAGS = {"1": True, "yes": True, "true": True, "on": True, "0": False, "no": False, "false": False, "off": False}
FOLDER = ".packhorse"
HIDDEN = "***"
MIN_SECRET_KEY = 32
"""Characters that a secret key has at least: so many can be guessed by nobody."""
KEY_FILE = f"{FOLDER}/secret-key"
"""Where `packhorse dev` keeps a secret key for those who have set none; who works in the same folder finds it."""


def queues(text: str) -> dict[str, int]:
    """``onnx=2,bie=1``; a name alone means one slot."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, count = part.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,63}", name) or not (count or "1").isdigit() or int(count or 1) < 1:
            raise ValueError(f"{part!r} is not NAME=SLOTS")
        found[name] = int(count or 1)
    return found


def port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise ValueError(f"{text!r} is not a port")
    return int(text)


def flag(text: str) -> bool:
    if text.lower() not in FLAGS:
        raise ValueError(f"{text!r} is neither yes nor no")
    return FLAGS[text.lower()]


def proxies(text: str) -> str:
    for part in filter(None, (part.strip() for part in text.split(","))):
        ip_network(part)
    return text


def secret_text(text: str) -> str:
    if 0 < len(text) < MIN_SECRET_KEY:
        raise ValueError(f"a secret has at least {MIN_SECRET_KEY} characters")
    return text


def allow_list(text: str) -> str:
    Allow.of(text)
    return text


def codes(text: str) -> tuple[str, ...]:
    found = tuple(filter(None, (part.strip() for part in text.split(","))))
    Revive(codes=found).to_plan()
    return found


def command(text: str) -> str:
    shlex.split(text)
    return text


def _optional_seconds(text: str) -> float | None:
    return seconds(text) if text.strip() else None


def _word(words: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"it is one of {', '.join(words)}")
        return text.lower()

    return parse


def _setting(default: Any, meaning: str, parse: Callable[[str], Any] = str, *, secret: bool = False) -> Any:
    make = default if callable(default) else lambda: default
    return field(default_factory=make, repr=not secret, metadata={"meaning": meaning, "parse": parse, "secret": secret})


@dataclass(frozen=True, kw_only=True)
class Settings:
    app: str = _setting("", "file.py or module:attribute with the pipelines; empty: the built-in sample")
    store: str = _setting(lambda: f"sqlite://{Path.cwd() / FOLDER / 'packhorse.db'}", "where jobs are remembered")
    prefix: str = _setting(REDIS_PREFIX, "what every key in a Redis begins with; {braces} name the slot of a cluster")
    blobs: str = _setting(lambda: f"file://{Path.cwd() / FOLDER / 'blobs'}", "where files are kept")
    s3_access_key: str = _setting("", "key for a bucket; empty: AWS_ACCESS_KEY_ID, which stages are given too")
    s3_secret_key: str = _setting("", "its secret; empty: AWS_SECRET_ACCESS_KEY", secret=True)
    scratch: str = _setting(lambda: str(Path.cwd() / FOLDER / "scratch"), "folder in which running stages work")
    url: str = _setting("", "the server that the command line and the client talk to")
    key: str = _setting("", "API key that the command line and the client show to that server", secret=True)
    host: str = _setting("127.0.0.1", "address to listen on")
    log_format: str = _setting(
        "text", "how serve and worker write their log: text, or json, a line per event", _word(FORMATS)
    )
    log_level: str = _setting(
        "info", "from which level on: debug (with a line per request), info, warning, error", _word(LEVELS)
    )
    metrics_port: int = _setting(0, "port of a worker's own /metrics, on the same address; 0: none", port)
    port: int = _setting(3002, "port to listen on; dev uses 3003", port)
    keyless: bool = _setting(False, "serve without keys, and this machine only: what dev does", flag)
    trust_proxy: str = _setting(
        "", "addresses or networks of proxies whose X-Forwarded-For is believed, as 10.0.0.0/8", proxies
    )
    api_limit: int = _setting(30_000, "requests of one key in 5 minutes; 0: any number", int)
    streams_limit: int = _setting(
        2500, "streams of events that one key may have open on one server; 0: any number", int
    )
    failed_limit: int = _setting(20, "requests without a good key from one address in a minute; 0: any number", int)
    session: float = _setting(43_200.0, "seconds for which a browser that has logged in stays so", seconds)
    audit_keep: int = _setting(100_000, "lines of audit kept; the oldest go first", int)
    queues: dict[str, int] = _setting(  # noqa: RUF009 (a default factory, made by _is)
        dict, "slots per queue of a worker, as onnx=2,bie=1; empty: every queue of its app", queues
    )
    slots: int = _setting(lambda: os.cpu_count() or 1, "slots of a queue whose number is not given", int)
    lease: float = _setting(15.0, "seconds after which a silent worker is given up; renewed every third of it", seconds)
    grace: float = _setting(10.0, "seconds a stage has between being asked to stop and being killed", seconds)
    drain: float = _setting(30.0, "seconds a worker that was told to stop lets its stages finish", seconds)
    recycle: int = _setting(1000, "stages a process runs before it is replaced", int)
    recycle_memory: int = _setting(0, "bytes above which a process is replaced after its stage; 0: never", size)
    retries: int = _setting(3, "attempts after the first, where a stage does not say", int)
    backoff: float = _setting(1.0, "wait before the second attempt, doubling, where a stage does not say", seconds)
    backoff_cap: float = _setting(60.0, "the longest such wait", seconds)
    timeout: float = _setting(600.0, "limit of one attempt, where a stage does not say", seconds)
    deadline: float = _setting(86_400.0, "limit of a whole run, where a pipeline does not say", seconds)
    pending: float = _setting(
        86_400.0, "time in which a worker must start a run, else it fails, where a pipeline does not say", seconds
    )
    keep: float = _setting(7 * 86_400.0, "how long ended jobs are kept, where a pipeline does not say", seconds)
    keep_completed: float | None = _setting(None, "the same for completed jobs alone; empty: as all", _optional_seconds)
    keep_failed: float | None = _setting(None, "the same for failed jobs alone; empty: as all", _optional_seconds)
    keep_cancelled: float | None = _setting(None, "the same for cancelled jobs alone; empty: as all", _optional_seconds)
    failures_keep: float = _setting(
        30 * 86_400.0, "how long failures are kept, whatever becomes of their jobs", seconds
    )
    revive_codes: tuple[str, ...] = _setting(
        (),
        "codes of failures that are retried by themselves, as HTTP_500,TIMEOUT, where a pipeline does not say",
        codes,
    )
    revive_times: int = _setting(3, "how often one job is", int)
    revive_backoff: float = _setting(300.0, "wait before the first time, doubling", seconds)
    revive_budget: int = _setting(100, "how many failures of one fingerprint are in the time below", int)
    revive_per: float = _setting(3_600.0, "that time", seconds)
    alert_command: str = _setting(
        "", "program, with its arguments, that is told of new kinds of failures: JSON on its input", command
    )
    result_limit: int = _setting(256 * 1024, "bytes of a stage's result besides its files", size)
    parameters_limit: int = _setting(256 * 1024, "bytes of a job's parameters besides its files", size)
    file_limit: int = _setting(2 * 1024**3, "bytes of one uploaded file", size)
    wait_limit: float = _setting(60.0, "the longest that a submit with `Prefer: wait` is answered late", seconds)
    body_silence: float = _setting(30.0, "seconds without a byte after which the sender of a body is given up", seconds)
    body_rate: int = _setting(1024, "bytes per second that a sender must come to on the whole, after that time", size)
    log_limit: int = _setting(1024**2, "bytes of log kept per job; the oldest lines go first", size)
    log_rate: int = _setting(
        256 * 1024, "bytes of output per second a stage may add to its log; the rest is counted, not kept", size
    )
    downloads_at_once: int = _setting(10, "downloads of one key at once; 0: any number", int)
    downloads_per_10s: int = _setting(5, "downloads a key may begin in ten seconds; 0: any number", int)
    downloads_per_minute: int = _setting(20, "downloads a key may begin in a minute; 0: any number", int)
    download_bytes_per_hour: int = _setting(1024**3, "bytes a key may download in an hour; 0: any number", size)
    download_bytes_per_day: int = _setting(6 * 1024**3, "bytes a key may download in 24 hours; 0: any number", size)
    download_timeout: float = _setting(300.0, "limit of one download; 0: none", seconds)
    promote_to: str = _setting("", "where promoted results go: s3://, file:/// or https://; several as NAME=ADDRESS,…")
    promote_token_url: str = _setting("", "where an HTTP file service's tokens come from (OAuth 2 client credentials)")
    promote_client_id: str = _setting("", "who we are there")
    promote_client_secret: str = _setting("", "its secret", secret=True)
    promote_scope: str = _setting("", "the scope asked for; empty: none")
    promote_timeout: float = _setting(60.0, "seconds without an answer of the file service that end a try", seconds)
    samples: int = _setting(100, "CPU and memory samples kept per job", int)
    secret_key: str = _setting(
        "",
        "what secret parameters are encrypted with, and the secrets of webhooks made from; the same everywhere",
        secret_text,
        secret=True,
    )
    outbound_allow: str = _setting(
        "",
        "hosts and networks that webhooks may go to though they are not public, as hooks.internal,10.1.0.0/16",
        allow_list,
    )
    runs_keep: float = _setting(30 * 86_400.0, "how long schedules remember what became of their ticks", seconds)
    runs_limit: int = _setting(10_000, "ticks that one schedule remembers; the oldest go first", int)
    sweep: float = _setting(5.0, "seconds between clean-ups of expired jobs and unreferenced files", seconds)
    orphan_after: float = _setting(2 * 86_400.0, "age at which objects that no job refers to are deleted", seconds)

    @cached_property
    def defaults(self) -> Defaults:
        """What applies where a pipeline does not say. Made once: every admission asks."""
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
        return Defaults(self.retries, backoff, self.timeout, self.deadline, self.keep, kept, self.pending, revive)


@dataclass(frozen=True)
class Loaded:
    settings: Settings
    origins: Mapping[str, str]
    """For each setting, where its value came from."""


def load(
    flags: Mapping[str, Any] | None = None, *, env: Mapping[str, str] | None = None, folder: Path | None = None
) -> Loaded:
    folder = folder or Path.cwd()
    values: dict[str, Any] = {}
    origins = {each.name: "default" for each in fields(Settings)}
    sources = [
        (KEY_FILE, _from_key_file(folder / KEY_FILE)),
        ("pyproject.toml", _from_pyproject(folder)),
        (".env", _from_file(folder / ".env")),
        ("environment", _from_names(os.environ if env is None else env)),
        ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    ]
    for origin, found in sources:
        for name, value in found.items():
            values[name] = _parse(name, value, origin)
            origins[name] = origin
    return Loaded(Settings(**values), origins)


def keep_secret_key(folder: Path | None = None) -> None:
    """Make the file with a secret key, unless there is one."""
    path = (folder or Path.cwd()) / KEY_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as content:
            content.write(secrets.token_urlsafe(MIN_SECRET_KEY) + "\n")


def descriptions() -> dict[str, str]:
    """What each setting is for, by its name in the environment."""
    return {PREFIX + each.name.upper(): each.metadata["meaning"] for each in fields(Settings)}


def printable(settings: Settings) -> dict[str, Any]:
    """Every value as it may be printed: secrets, and those in an address, as asterisks."""
    found: dict[str, Any] = {}
    for each in fields(Settings):
        value = getattr(settings, each.name)
        if each.metadata["secret"]:
            value = HIDDEN if value else ""
        found[each.name] = without_secrets(value) if isinstance(value, str) else value
    return found


HARMLESS = "endpoint|region|path_style|schema|statement_cache_size|prefix|timeout|db"


def without_secrets(address: str) -> str:
    """The address without a password before the host, and without what its query says besides what is harmless."""
    address = re.sub(r"(?<=://)([^:/?#@]*):.*@", rf"\1:{HIDDEN}@", address)
    return re.sub(rf"(?<=[?&])(?!(?:{HARMLESS})=)([^=&#]*)=[^&#]*", rf"\1={HIDDEN}", address)


def _parse(name: str, value: Any, origin: str) -> Any:
    known = {each.name: each for each in fields(Settings)}
    if name not in known:
        close = ", ".join(get_close_matches(name, known)) or ", ".join(known)
        raise SettingError(f"There is no setting {name!r} ({origin}); there is {close}.", name=name, value=value)
    if not isinstance(value, str):
        value = _as_text(value)
    told = HIDDEN if known[name].metadata["secret"] else value
    try:
        parsed = known[name].metadata["parse"](value)
    except ValueError as error:
        raise SettingError(
            f"The setting {name} ({origin}) cannot be {told!r}: {error}.", name=name, value=told
        ) from error
    if name in POSITIVE and parsed <= 0:
        raise SettingError(f"The setting {name} ({origin}) must be more than zero.", name=name, value=value)
    if isinstance(parsed, int) and parsed < 0:
        raise SettingError(f"The setting {name} ({origin}) must not be negative.", name=name, value=value)
    return parsed


def _as_text(value: Any) -> str:
    """As it would be in the environment."""
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
    return _from_names({name.strip().removeprefix("export "): value.strip().strip("\"'") for name, _, value in pairs})


def _from_key_file(path: Path) -> dict[str, Any]:
    return {"secret_key": path.read_text().strip()} if path.is_file() else {}


def _from_pyproject(folder: Path) -> dict[str, Any]:
    path = folder / "pyproject.toml"
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text()).get("tool", {}).get("packhorse", {})
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} cannot be read: {error}.", name="app", value="") from error
    return {name.replace("-", "_"): value for name, value in found.items()}
