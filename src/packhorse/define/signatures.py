"""Tells what kind of file its first bytes say it is, for kinds that have a signature."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence

HEAD = 32  # bytes of a file that `detect` needs

IMAGE_BRANDS = frozenset(
    (
        b"avif",
        b"avis",
        b"heic",
        b"heix",
        b"heim",
        b"heis",
        b"hevc",
        b"hevx",
        b"hevm",
        b"hevs",
        b"mif1",
        b"msf1",
        b"crx ",
    )
)
OLD_MOVIE = (b"moov", b"mdat", b"wide", b"pnot")  # QuickTime files from before `ftyp`
RIFF = {b"WAVE": "wav", b"WEBP": "webp", b"AVI ": "avi"}

STARTS: Sequence[tuple[bytes, str]] = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"\x1aE\xdf\xa3", "matroska"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"PK\x07\x08", "zip"),
    (b"\x1f\x8b\x08", "gzip"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"%PDF-", "pdf"),
)

FORMATS: Mapping[str, Sequence[str]] = {
    "png": ("image/png",),
    "jpeg": ("image/jpeg", "image/jpg", "image/pjpeg"),
    "gif": ("image/gif",),
    "webp": ("image/webp",),
    "bmp": ("image/bmp", "image/x-ms-bmp"),
    "tiff": ("image/tiff",),
    "heif": ("image/heif", "image/heic", "image/avif"),
    "wav": ("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave"),
    "mp3": ("audio/mpeg", "audio/mp3"),
    "id3": ("audio/x-id3",),
    "flac": ("audio/flac", "audio/x-flac"),
    "ogg": ("audio/ogg", "video/ogg", "application/ogg", "audio/opus"),
    "mp4": ("video/mp4", "audio/mp4", "video/quicktime", "audio/x-m4a", "video/x-m4v", "video/3gpp"),
    "avi": ("video/x-msvideo", "video/avi"),
    "matroska": ("video/webm", "audio/webm", "video/x-matroska", "audio/x-matroska"),
    "zip": ("application/zip", "application/x-zip-compressed", "application/epub+zip", "application/java-archive"),
    "gzip": ("application/gzip", "application/x-gzip"),
    "bzip2": ("application/x-bzip2",),
    "xz": ("application/x-xz",),
    "zstd": ("application/zstd",),
    "7z": ("application/x-7z-compressed",),
    "pdf": ("application/pdf",),
}
"""Media types per format. A container has several: its first bytes do not say what is inside."""

REQUIRED = frozenset({"png", "jpeg", "gif", "webp", "gzip", "xz", "zstd", "7z"})
"""Formats that begin in one way only. A file of any other may begin in a way that is not known here."""
TAGGED = frozenset({"mp3", "flac"})
"""Formats that a tag may precede, which does not say what follows."""

FORMAT_OF = {media_type: name for name, types in FORMATS.items() for media_type in types}
SUFFIXES = {
    ".webp": "webp",
    ".flac": "flac",
    ".oga": "ogg",
    ".ogg": "ogg",
    ".opus": "ogg",
    ".m4a": "mp4",
    ".mkv": "matroska",
}
"""What `mimetypes` does not know on every machine."""
COMPRESSED = {"gzip": "gzip", "bzip2": "bzip2", "xz": "xz"}


def detect(head: bytes) -> str | None:
    """The format that a file of these first bytes has, by its name in `FORMATS`; None if it is not known.

    No text begins like any of them: a CSV file may well begin with BMI, and a text in UTF-16 with FF FE.
    """
    if head[:4] in (b"RIFF", b"RIFX", b"RF64", b"BW64"):
        return RIFF.get(head[8:12])
    if head[4:8] in (b"ftyp", b"styp"):
        return "heif" if head[8:12] in IMAGE_BRANDS else "mp4"
    if head[4:8] in OLD_MOVIE and head[0] == 0:
        return "mp4"
    if head[:2] == b"BM" and len(head) >= 14 and head[6:10] == bytes(4):
        return "bmp"
    if head[:3] == b"BZh" and head[4:10] == b"1AY&SY":
        return "bzip2"
    if head[:3] == b"ID3" and head[3:4] in (b"\2", b"\3", b"\4"):
        return "id3"
    if _is_mpeg_frame(head):
        return "mp3"
    return next((name for start, name in STARTS if head.startswith(start)), None)


def _is_mpeg_frame(head: bytes) -> bool:
    """Of layer II or III, with a bit rate and a sample rate that exist."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return False
    version, layer, bit_rate, sample_rate = head[1] >> 3 & 3, head[1] >> 1 & 3, head[2] >> 4, head[2] >> 2 & 3
    return version != 1 and layer in (1, 2) and bit_rate not in (0, 15) and sample_rate != 3


def fits(expected: str, found: str | None) -> bool:
    """Whether content of the format ``found`` does not contradict the expected format."""
    if found is None:
        return expected not in REQUIRED
    return found == expected or (found == "id3" and expected in TAGGED)


def format_of(kind: str) -> str | None:
    """The format of a file name, a suffix or a media type; None for one without a signature."""
    if "/" in kind:
        return FORMAT_OF.get(kind)
    name = f"file{kind}".lower() if kind.startswith(".") else kind.lower()
    for suffix, known in SUFFIXES.items():
        if name.endswith(suffix):
            return known
    media_type, encoding = mimetypes.guess_type(name)
    return COMPRESSED.get(encoding) if encoding else FORMAT_OF.get(media_type or "")


def is_of(family: str, name: str) -> bool:
    """Whether the format can be of that family, such as ``image``."""
    return any(each.startswith(f"{family}/") for each in FORMATS[name])
