"""Files in user code: a local path with its original name; safe file names and artifact names."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar, get_args, get_origin
from urllib.parse import quote

from packhorse.define import signatures
from packhorse.define.introspection import caller, definition_error
from packhorse.define.options import Size
from packhorse.define.options import size as bytes_of
from packhorse.errors import InvalidInput, TooLarge, UnsupportedMedia

F = TypeVar("F")

DRIVE = re.compile(r"[A-Za-z]:[/\\]")

MAX_NAME = 255  # Bytes. The limit of file systems for one name.
MAX_PATH = 1024  # bytes of a name with its folders
MAX_SUFFIX = 32  # Bytes. A suffix up to this length is kept when a name is shortened.

MAX_KEY = 600  # bytes of a name at the end of a key, after the prefix and the job id

ODD = re.compile(r'[\x00-\x1f\x7f-\x9f%\\:*?"<>|\u2028\u2029\ud800-\udfff\ufffe\uffff]')
"""Characters that some object store rejects in a key, and the % used to escape them."""

BIDI = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
"""They reorder displayed text: ``invoice``, U+202E, ``fdp.exe`` would look like a PDF."""


class File:
    """A file, given by its path. It need not exist yet: it is opened when it is read, submitted or returned.

    It works wherever Python takes a path: ``open(p.photo)``, ``Image.open(p.photo)``, ``shutil.copy(p.photo, ...)``.
    ``path`` is its `Path`, and ``name`` the file name that users see.
    """

    __slots__ = ("_sha256", "made_by", "name", "path")

    def __init__(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        self.path = Path(path)
        self.made_by: tuple[str, str] | None = None
        """Job and artifact, for a file of an earlier job."""
        self.name = sanitize_name(self.path.name if name is None else name)
        self._sha256: str | None = None

    @classmethod
    def of_job(cls, job_id: str, artifact: str) -> File:
        """An artifact of an earlier job, to submit another job with. It is copied, and cannot be read here."""
        found = cls(f"job:{job_id}/artifacts/{artifact}")
        found.made_by = (job_id, artifact)
        return found

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def sha256(self) -> str:
        """Hex digest, computed once and then cached."""
        if self._sha256 is None:
            with self.path.open("rb") as content:
                self._sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        return self._sha256

    def __fspath__(self) -> str:
        return str(self.path)

    def open(self) -> BinaryIO:
        return self.path.open("rb")

    def read_bytes(self) -> bytes:
        return self.path.read_bytes()

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.path.read_text(encoding)

    def __eq__(self, other: object) -> bool:
        return self.path == other.path if isinstance(other, File) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"File({str(self.path)!r}, name={self.name!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """Support for File in pydantic models. Only pydantic calls it."""
        from pydantic_core import core_schema

        def read(value: Any, info: Any) -> File:
            return value if isinstance(value, File) else file_at(value, (info.context or {}).get("files", ()))

        return core_schema.with_info_plain_validator_function(read)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, str]:
        return dict(SCHEMA)


SCHEMA = {"type": "string", "format": "binary"}


def file_at(value: object, files: Sequence[F]) -> F:
    """The file that ``{"$file": n}`` refers to. Raises ValueError if there is none."""
    match value:
        case {"$file": int(n), **rest} if not rest and not isinstance(n, bool):
            if 0 <= n < len(files):
                return files[n]
            raise ValueError(f"There is no file number {n}")
    raise ValueError("Expected a file")


def disposition(name: str) -> str:
    """Content-Disposition for any file name (RFC 6266), with an ASCII fallback for old clients."""
    name = sanitize_name(name)
    plain = "".join(c if " " <= c <= "~" and c not in '"\\%' else "_" for c in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def sanitize_name(name: str) -> str:
    """A client's file name made safe to store, show and download: no path, no invisible characters, never empty."""
    last = next((part for part in reversed(name.replace("\\", "/").split("/")) if part.strip(". \t")), "")
    seen = "".join(c for c in last if unicodedata.category(c) not in {"Cc", "Cs", "Zl", "Zp"} and c not in BIDI)
    return _shorten(_trim(unicodedata.normalize("NFC", seen))) or "file"


def artifact_name(name: str) -> str:
    """A safe artifact name, which may contain folders. Raises InvalidInput for absolute paths and ``..``."""
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or DRIVE.match(name):
        raise InvalidInput(f"An artifact cannot be named {name!r}: use a relative path without ..")
    safe = "/".join(sanitize_name(part) for part in parts if part not in ("", "."))
    if not safe:
        raise InvalidInput(f"An artifact needs a name, not {name!r}.")
    if len(safe.encode()) > MAX_PATH:
        raise InvalidInput(f"An artifact name has at most {MAX_PATH} bytes, and this one has {len(safe.encode())}.")
    return safe


def artifact_key(name: str) -> str:
    """The artifact name as the end of an object key, valid in every object store and unique per name."""
    safe = _quote_odd(name)
    parts = safe.split("/")
    if len(safe.encode()) <= MAX_KEY and max(len(part.encode()) for part in parts) <= MAX_NAME:
        return safe
    return f"{parts[0][:50]}/{hash_name(name)}"


def hash_name(name: str) -> str:
    """A short stable name for one that is too long for a key: a hash with the suffix, without folders."""
    suffix = Path(_quote_odd(name).rpartition("/")[2]).suffix
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{digest}{suffix if suffix.isascii() and len(suffix) <= MAX_SUFFIX else ''}"


def _quote_odd(name: str) -> str:
    return ODD.sub(lambda found: quote(found[0], safe="", errors="surrogatepass"), name)


def _trim(name: str) -> str:
    while name != (bare := name.strip().lstrip(".")):
        name = bare
    return name


def _shorten(name: str) -> str:
    if len(name.encode()) <= MAX_NAME:
        return name
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix.encode()) > MAX_SUFFIX:
        stem, dot, suffix = name, "", ""
    room = MAX_NAME - len((dot + suffix).encode())
    return stem.encode()[:room].decode(errors="ignore").rstrip() + dot + suffix


KIND = re.compile(r"\.[^\s/,;]{1,30}|[a-z]+/(?:\*|[a-z0-9][a-z0-9.+-]*)")

ACCEPT, MAX_BYTES, CONTENT, PATH_NAME = "x-accept", "x-max-bytes", "x-check-content", "x-path-name"
"""JSON Schema has no keywords for this."""


class Accepts:
    """``model: Annotated[File, Accepts(".onnx", "image/*", size="200MB")]``: one of these kinds, no larger than that.

    A kind is a suffix or a media type. It is compared with the file name and the media type that the client sent (a
    name without a suffix is what its media type says), and with the first bytes of the file, which must not be those of
    another format. ``content=False`` leaves the bytes to the stage. ``path="model_path"`` is a second name of the
    parameter, under which callers may give the path of a file that the server can read (`PACKHORSE_INPUT_FOLDERS`).
    Also works in ``... | None`` and ``list[...]``.
    """

    def __init__(self, *kinds: str, size: Size | None = None, content: bool = True, path: str | None = None) -> None:
        wrong = [kind for kind in kinds if not KIND.fullmatch(str(kind).lower())]
        if wrong:
            raise definition_error(
                f'{wrong[0]!r} is not a kind of file: use ".onnx", "image/png" or "image/*"', caller()[0]
            )
        self.kinds = tuple(kind.lower() for kind in kinds)
        self.content = content
        self.path = path
        try:
            self.size = None if size is None else bytes_of(size)
        except ValueError as error:
            raise definition_error(str(error)) from error

    @classmethod
    def from_schema(cls, schema: Mapping[str, Any]) -> Accepts:
        """Read from the JSON Schema of a file parameter."""
        return cls(
            *schema.get(ACCEPT, ()),
            size=schema.get(MAX_BYTES),
            content=schema.get(CONTENT, True),
            path=schema.get(PATH_NAME),
        )

    def schema(self) -> dict[str, Any]:
        accept: dict[str, Any] = {ACCEPT: list(self.kinds)} if self.kinds else {}
        if self.kinds and not self.content:
            accept[CONTENT] = False
        if self.path is not None:
            accept[PATH_NAME] = self.path
        return accept if self.size is None else {**accept, MAX_BYTES: self.size}

    def check(self, field: str, name: str, media_type: str = "") -> None:
        """Raises UnsupportedMedia with the field and the accepted kinds."""
        if self.kinds and not self._matching(name, media_type):
            error = UnsupportedMedia(f"{field} must be {_join_or(self.kinds)}: {name} is not.", field=field)
            error.hint = "packhorse compares the name of the file, or its media type."
            raise error

    def check_content(self, field: str, name: str, media_type: str, head: bytes) -> None:
        """Compare the first bytes with the accepted kinds that the file claims to be. Raises UnsupportedMedia."""
        matching = self._matching(name, media_type) if self.content else []
        found = signatures.detect(head)
        claims = (name, media_type.partition(";")[0].strip().lower())
        if matching and not any(_is_content(kind, claims, found) for kind in matching):
            what = "empty" if not head else "in an unknown format" if found is None else found.upper()
            error = UnsupportedMedia(
                f"{field} must be {_join_or(self.kinds)}: the content of {name} is {what}.", field=field
            )
            error.hint = "The content of the file must match its name."
            raise error

    def _matching(self, name: str, media_type: str) -> list[str]:
        given = {media_type.partition(";")[0].strip().lower(), mimetypes.guess_type(name)[0] or ""}
        return [kind for kind in self.kinds if _matches(kind, name.lower(), given)]

    def check_size(self, field: str, size: int) -> None:
        if self.size is not None and size > self.size:
            raise TooLarge(field=field, limit=self.size)

    def limit(self, most: int) -> int:
        return most if self.size is None else min(most, self.size)


ANYTHING = Accepts()


def accepts_in(hint: Any) -> Accepts | None:
    """The `Accepts` annotation of a parameter type: its own, beside None, or of its elements."""
    inside = get_args(hint)
    if get_origin(hint) is Annotated:
        base, *notes = inside
        return next((note for note in notes if isinstance(note, Accepts)), None) or accepts_in(base)
    return next((found for each in inside if (found := accepts_in(each)) is not None), None)


def _matches(kind: str, name: str, given: set[str]) -> bool:
    if kind.startswith("."):
        return name.endswith(kind) or ("." not in name and mimetypes.guess_type(f"file{kind}")[0] in given - {""})
    if kind.endswith("/*"):
        return any(each.startswith(kind[:-1]) for each in given)
    return kind in given


def _is_content(kind: str, claims: tuple[str, str], found: str | None) -> bool:
    """Whether a file of this name and media type, with content of the format ``found``, can be of this kind."""
    if kind.endswith("/*"):
        claimed = [name for name in map(signatures.format_of, claims) if name is not None]
        if any(signatures.fits(name, found) for name in claimed):
            return True
        return not claimed if found is None else signatures.is_of(kind[:-2], found)
    expected = signatures.format_of(kind)
    return expected is None or signatures.fits(expected, found)


def _join_or(kinds: tuple[str, ...]) -> str:
    *first, last = kinds
    return f"{', '.join(first)} or {last}" if first else last
