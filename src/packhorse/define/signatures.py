"""Tells what kind of file its first bytes say it is, for kinds that have a signature."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence

HEAD = 32  # bytes of a file that `detect` needs

IMAGE_BRANDS = {b"avif": "avif", b"avis": "avif"} | dict.fromkeys((b"heic", b"heix", b"hevc", b"mif1", b"msf1"), "heic")
OLD_MOVIE = (b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")  # QuickTime files from before `ftyp`

STARTS: Sequence[tuple[bytes, str]] = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\x1aE\xdf\xa3", "matroska"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
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
    "avif": ("image/avif",),
    "heic": ("image/heic", "image/heif"),
    "wav": ("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave"),
    "mp3": ("audio/mpeg", "audio/mp3"),
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
    """The format that a file of these first bytes has, by its name in `FORMATS`; None if it is not known."""
    if head[:4] == b"RIFF":
        return {b"WAVE": "wav", b"WEBP": "webp", b"AVI ": "avi"}.get(head[8:12])
    if head[4:8] == b"ftyp":
        return IMAGE_BRANDS.get(head[8:12], "mp4")
    if head[4:8] in OLD_MOVIE:
        return "mp4"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x06:
        return "jpeg" if head[:3] == b"\xff\xd8\xff" else "mp3"
    return next((name for start, name in STARTS if head.startswith(start)), None)


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
