"""Opens what the settings name: the store, the object store, promote destinations and places of input files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from packhorse.blobs import bucket_place, open_blobs
from packhorse.blobs.base import Blobs
from packhorse.errors import SettingError, StoreError
from packhorse.jobs.deployment import PublishDestination, claim, get_id
from packhorse.jobs.input_paths import InputBucket, InputPaths
from packhorse.jobs.promote import Destination, InBlobs
from packhorse.log import log
from packhorse.settings import ENVIRONMENTS, REDIS_PREFIX, REDIS_SCHEMES, S3_SCHEME, Settings, listed, without_secrets
from packhorse.store.base import Store

NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
LOCAL = frozenset({"sqlite", "file"})
STORES = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres", **dict.fromkeys(REDIS_SCHEMES, "redis")}
"""The kind of store for each scheme of a URL."""
DEFAULT_PREFIXES = (REDIS_PREFIX, *(each["prefix"] for each in ENVIRONMENTS.values()))


async def open_store(url: str, prefix: str = REDIS_PREFIX) -> Store:
    """Open the store of the URL. A new store is added here, and in `check`."""
    match _kind(url):
        case "sqlite":
            from packhorse.store.sqlite import SqliteStore

            return await SqliteStore.open(_sqlite_path(url))
        case "postgres":
            with _installed_driver(url, "postgres"):
                from packhorse.store.postgres import PostgresStore
            return await PostgresStore.open(url)
        case _:
            with _installed_driver(url, "redis"):
                from packhorse.store.redis import RedisStore
            return await RedisStore.open(url, prefix)


def check(settings: Settings) -> None:
    """Raise SettingError for invalid URLs of the store, blobs or destinations. Connects to nothing."""
    match _kind(settings.store):
        case "sqlite":
            _sqlite_path(settings.store)
        case "postgres":
            with _installed_driver(settings.store, "postgres"):
                from packhorse.store.postgres.connection import address_from
            address_from(settings.store)
        case _:
            with _installed_driver(settings.store, "redis"):
                from packhorse.store.redis.client import address
            address(settings.store, settings.prefix)
    check_views(settings)
    blobs_from(settings)
    publish_blobs_from(settings)
    destinations_from(settings)
    inputs_from(settings)


def check_views(settings: Settings) -> None:
    """Raise SettingError for views on another store than Redis, and for a view under packhorse's own prefix."""
    if not settings.redis_views:
        return
    names = ", ".join(settings.redis_views)
    if _kind(settings.store) != "redis":
        raise _bad_views(names, "it needs a Redis store: set PACKHORSE_STORE to redis://…, or leave it empty")
    with _installed_driver(settings.store, "redis"):
        from packhorse.store.redis.client import address
    found = address(settings.store, settings.prefix)
    own = {found.prefix_in(is_cluster=each) for each in (False, True)}  # only the server says whether it is a cluster
    for name, prefix in settings.redis_views.items():
        if prefix in own:
            raise _bad_views(f"{name}={prefix}", "that is packhorse's own prefix; choose another one")


def _bad_views(value: str, reason: str) -> SettingError:
    return SettingError(f"PACKHORSE_REDIS_VIEWS cannot be {value!r}: {reason}.", name="redis_views", value=value)


def _kind(url: str) -> str:
    kind = STORES.get(urlsplit(url).scheme)
    if kind is None:
        raise _bad_store(url, "begin with sqlite://, postgresql:// or redis://")
    return kind


def _bad_store(url: str, must: str) -> SettingError:
    place = without_secrets(url)
    return SettingError(f"PACKHORSE_STORE must {must}, not {place!r}.", name="store", value=place)


@contextmanager
def _installed_driver(url: str, extra: str) -> Iterator[None]:
    """Raise SettingError if an import inside the block fails: the driver of a store may not be installed."""
    try:
        yield
    except ImportError as error:
        scheme = urlsplit(url).scheme
        raise SettingError(
            f"PACKHORSE_STORE begins with {scheme}://, but its driver is not installed: pip install packhorse[{extra}]",
            name="store",
            value=scheme,
        ) from error


def _sqlite_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/"):
        raise _bad_store(url, "be sqlite:///absolute/path")
    return Path(unquote(parts.path))


def is_absent(url: str) -> bool:
    """Whether a local store or object store does not exist yet. Creates nothing."""
    return is_local(url) and not _local_path(url).exists()


def is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in LOCAL and not parts.netloc


def _local_path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


async def open_both(settings: Settings) -> tuple[Store, Blobs]:
    """Open both for a process that works with them. Raises WrongDeployment if they do not belong together."""
    check_views(settings)
    store, blobs = await open_store(settings.store, settings.prefix), blobs_from(settings)
    try:
        await claim(store, blobs, address_of(settings))
    except BaseException:
        await store.close()
        await blobs.close()
        raise
    return store, blobs


def redis_prefix(settings: Settings) -> str | None:
    """The prefix of every key; None if the store is not Redis. One in the URL wins."""
    if _kind(settings.store) != "redis":
        return None
    return dict(parse_qsl(urlsplit(settings.store).query, keep_blank_values=True)).get("prefix", settings.prefix)


async def other_prefixes(settings: Settings) -> list[str]:
    """Default prefixes under which this Redis holds a deployment, if there is none under the chosen prefix."""
    chosen, found = redis_prefix(settings), list[str]()
    if chosen is None or chosen != settings.prefix:  # one in the URL would win over each of them
        return []
    for prefix in (chosen, *(each for each in DEFAULT_PREFIXES if each != chosen)):
        store = await open_store(settings.store, prefix)
        try:
            if await get_id(store) is not None:
                found.append(prefix)
        finally:
            await store.close()
        if chosen in found:
            return []
    return found


async def run_app_sql(settings: Settings, script: str | None) -> None:
    """Run the SQL file that the app declares, on PostgreSQL only. A failure is logged: jobs do without it.

    The worker runs this SQL of the app with the store's role, on connections of its own. It reads the file and does not
    import the package.
    """
    if script is None or _kind(settings.store) != "postgres":
        return
    from packhorse.store.postgres import PostgresStore
    from packhorse.store.postgres.connection import address_from

    package = Path(settings.app.partition(":")[0]).stem.partition(".")[0]
    store = PostgresStore(address_from(settings.store))
    try:
        if await store.install(package, _read_script(_folder_of(settings.app), script)):
            log.app_sql_ran(package)
    except StoreError as error:
        log.app_sql_failed(package, str(error))
    except (OSError, ImportError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        log.script_refused(package, str(error))
    finally:
        await store.close()


def _folder_of(app: str) -> Path:
    """The folder of the app's package or file. Only the outermost package is looked up: that imports nothing."""
    where = app.partition(":")[0]
    if where.endswith(".py"):
        return Path(where).parent
    spec = find_spec(where.partition(".")[0])
    folders = (spec and spec.submodule_search_locations) or ()
    if not folders:
        raise ValueError(f"{where} is not a package that the worker can find")
    return Path(next(iter(folders)))


def _read_script(folder: Path, name: str) -> str:
    """Raises ValueError if the file is outside of the folder, or if users other than its owner may write to it."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"{name} is outside of {folder}")
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError(f"group or others may write to {path}. Make it writable for its owner only (chmod go-w)")
        return file.read().decode()


def address_of(settings: Settings) -> str:
    """Where the store is, as it may be shown."""
    prefix = redis_prefix(settings)
    return without_secrets(settings.store) + ("" if prefix is None else f" with the prefix {prefix}")


def blobs_from(settings: Settings) -> Blobs:
    return open_blobs(settings.blobs, settings.s3_access_key, settings.s3_secret_key)


def inputs_from(settings: Settings) -> InputPaths:
    """Where callers may name input files by path. Raises SettingError for a place among packhorse's own files."""
    own = [Path(settings.scratch), *(_local_path(url) for url in (settings.blobs, settings.store) if is_local(url))]
    folders, buckets = list[Path](), list[InputBucket]()
    for part in listed(settings.input_folders):
        if part.startswith(S3_SCHEME):
            buckets.append(_input_bucket(part, settings))
            continue
        folder = Path(os.path.normpath(part))
        if any(folder.resolve().is_relative_to(each.resolve()) for each in own):
            raise _no_input(part, "it is among packhorse's own files")
        folders.append(folder)
    return InputPaths(folders, buckets, own)


def _input_bucket(url: str, settings: Settings) -> InputBucket:
    try:
        blobs = open_blobs(url, settings.s3_access_key, settings.s3_secret_key)
    except SettingError as error:
        raise _no_input(url, str(error).replace("PACKHORSE_BLOBS", "it").rstrip(".")) from error
    place, own = bucket_place(url), None
    if settings.blobs.startswith(S3_SCHEME) and (ours := bucket_place(settings.blobs)).server == place.server:
        own = ours.prefix
    if own is not None and place.prefix.startswith(own):
        raise _no_input(url, "packhorse's own objects are there; give them a prefix of their own in PACKHORSE_BLOBS")
    return InputBucket(place.bucket, place.prefix, own, blobs)


def _no_input(url: str, reason: str) -> SettingError:
    place = without_secrets(url)
    return SettingError(f"PACKHORSE_INPUT_FOLDERS cannot have {place!r}: {reason}.", name="input_folders", value=place)


def publish_destination(store: Store, settings: Settings) -> PublishDestination | None:
    """Where published files go; None if they stay in the object store of the jobs."""
    blobs = publish_blobs_from(settings)
    return None if blobs is None else PublishDestination(store, blobs, address_of(settings))


def publish_blobs_from(settings: Settings) -> Blobs | None:
    if not settings.publish_to:
        return None
    ours, theirs = urlsplit(settings.blobs), urlsplit(settings.publish_to)
    if (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc):
        first, second = (Path("/", unquote(each.path).strip("/")) for each in (ours, theirs))
        if ours.scheme == "file":
            first, second = first.resolve(), second.resolve()
        if first.is_relative_to(second) or second.is_relative_to(first):
            message = "PACKHORSE_PUBLISH_TO must not be inside of PACKHORSE_BLOBS or around it."
            raise SettingError(f"{message} Use another bucket, folder or prefix.", name="publish_to")
    try:
        return open_blobs(settings.publish_to, settings.s3_access_key, settings.s3_secret_key)
    except SettingError as error:
        message = str(error).replace("PACKHORSE_BLOBS", "PACKHORSE_PUBLISH_TO")
        raise SettingError(message, name="publish_to") from error


def destinations_from(settings: Settings) -> dict[str, Destination]:
    """Destinations of promoted results by name, the default first."""
    found: dict[str, Destination] = {}
    for part in listed(settings.promote_to):
        name, equals, address = part.partition("=")
        if not NAME.fullmatch(name) or not equals:
            name, address = "default", part
        if name in found:
            raise _no_destination(part, "the name is used twice")
        found[name] = _destination(address, settings)
    return found


def _destination(address: str, settings: Settings) -> Destination:
    parts = urlsplit(address)
    shown = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _no_destination(address, "it must not contain a password or a fragment")
    if _holds_objects(parts, urlsplit(settings.blobs)):
        raise _no_destination(address, "packhorse deletes what is there with its jobs (PACKHORSE_BLOBS)")
    match parts.scheme:
        case "s3" | "gs" | "file":
            try:
                blobs = open_blobs(address, settings.s3_access_key, settings.s3_secret_key)
            except SettingError as error:
                raise _no_destination(address, str(error).replace("PACKHORSE_BLOBS", "it")) from error
            return InBlobs(blobs, shown)
        case "http" | "https" if parts.hostname and not parts.query:
            return _file_service(shown, settings)
    raise _no_destination(address, "it must begin with s3://, gs://, file:/// or https://")


def _holds_objects(place: SplitResult, blobs: SplitResult) -> bool:
    """Whether copies in a place would lie among the objects of jobs, which are deleted with their jobs."""
    if (place.scheme, place.netloc, place.query) != (blobs.scheme, blobs.netloc, blobs.query):
        return False
    here, there = (PurePosixPath("/", normpath(each.path).lstrip("/")) for each in (place, blobs))
    return here == there or here.is_relative_to(there / "jobs")


def _file_service(address: str, settings: Settings) -> Destination:
    """An HTTP file service. The operator chose its address, so it may be private."""
    import httpx2

    from packhorse.jobs.promote import Credentials, FileService, Tokens

    http = httpx2.AsyncClient(timeout=settings.promote_timeout)
    if not settings.promote_token_url:
        return FileService(http, address, None)
    credentials = Credentials(
        settings.promote_token_url, settings.promote_client_id, settings.promote_client_secret, settings.promote_scope
    )
    return FileService(http, address, Tokens(http, credentials))


def _no_destination(address: str, reason: str) -> SettingError:
    place = without_secrets(address)
    return SettingError(f"PACKHORSE_PROMOTE_TO cannot be {place!r}: {reason}.", name="promote_to", value=place)
