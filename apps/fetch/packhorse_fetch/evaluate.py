"""Checks the app on feeds, pages and pictures of others: ``python -m packhorse_fetch.evaluate``.

The material comes from archives of the package index that ``pins.toml`` names; they are downloaded once. A file belongs
to the held-out half or to the other one by the hash of its name. Only the other half may be looked at while the app is
changed (``--part seen``).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import html
import importlib.util
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from packhorse_fetch.app import type_of
from packhorse_fetch.examine import examine

PINS = Path(__file__).with_name("pins.toml")
FOLDER = Path(sys.prefix) / "share" / "packhorse_fetch"
TAG = re.compile(r"<[^<>]*>")
TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.DOTALL | re.IGNORECASE)
CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
EXPECT = re.compile(r"Expect:\s*(.+?)\s*-->", re.DOTALL)
HEADER = re.compile(r"Content-type:\s*(.+)", re.IGNORECASE)
KEYS = {
    **{name: name for name in ("title", "link", "id", "summary", "published")},
    "guid": "id",
    "description": "summary",
    "updated": "published",
}
"""Our names of feedparser's fields."""
PICTURES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".jp2": "image/jp2",
}
BY_EYE = {".avif": "image/avif", ".bmp": "image/bmp", ".ico": "image/x-icon"}
"""Formats that `imagesize` does not read: only whether they are measured counts."""
LONG = 60  # characters of a text that are made a title


class Seen(NamedTuple):
    """What the app says of a file. Nothing if its job failed."""

    fields: Mapping[str, Any]
    size: tuple[int, int] | None = None


Look = Callable[[bytes, str, Mapping[str, str]], Seen]


class Case(NamedTuple):
    name: str
    file: str
    is_right: Callable[[Look], bool]


def look(data: bytes, content_type: str, wanted: Mapping[str, str]) -> Seen:
    with tempfile.TemporaryDirectory(prefix="packhorse-fetch-") as folder:
        path = Path(folder) / "original"
        path.write_bytes(data)
        found = examine(path, type_of(path, content_type), content_type, wanted, Path(folder) / "thumbnail.png")
    size = None if found.image is None else (found.image.width, found.image.height)
    return Seen(found.fields or {}, size)


def same(expected: str, found: object) -> bool:
    """Whether both say the same to a reader: feedparser keeps markup, the app gives plain text."""
    return isinstance(found, str) and _words(expected) == _words(found)


def _words(text: str) -> str:
    return " ".join(html.unescape(TAG.sub(" ", text)).split())


# Feeds with what feedparser's authors expect in them.


def expectations(data: bytes) -> Iterator[tuple[str, str]]:
    """Path and text of each field that the app has, too."""
    found = EXPECT.search(data[:4000].decode("utf-8", "ignore"))
    if found is None:
        return
    try:
        tree = ast.parse(found[1].removeprefix("not bozo and").removeprefix("bozo and").strip(), mode="eval")
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
            path, value = _path(node.left), node.comparators[0]
            if path and isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
                yield path, value.value


def _path(node: ast.expr) -> str | None:
    match ast.unparse(node).replace('"', "'"):
        case text if found := re.fullmatch(r"feed(?:\['(title|link)'\]|\.(title|link))", text):
            return found[1] or found[2]
        case text if found := re.fullmatch(r"entries\[(\d+)\](?:\['(\w+)'\]|\.(\w+))", text):
            key = KEYS.get(found[2] or found[3])
            return f"entries[{found[1]}].{key}" if key else None
    return None


def feed_cases(folder: Path) -> Iterator[Case]:
    for path in sorted((folder / "feedparser").rglob("tests/*/**/*.xml")):
        data, name = path.read_bytes(), path.relative_to(folder).as_posix()
        if "sanitize" in name or "/base/" in name or "/http/" in name:  # about HTML, and a base address of the test
            continue
        said = HEADER.search(data[:1000].decode("latin-1"))
        given = said[1].strip() if said else "application/xml"
        for field, text in expectations(data):
            yield Case(
                "feeds of feedparser's tests",
                name,
                lambda see, data=data, given=given, field=field, text=text: same(  # type: ignore[misc]
                    text, see(data, given, {"x": field}).fields.get("x")
                ),
            )


# Feeds and pages of the web, by the charset they are in.


def charset_cases(folder: Path) -> Iterator[Case]:
    for path in sorted((folder / "chardet").rglob("tests/*/*.*")):
        charset, name = _codec(path.parent.name), path.relative_to(folder).as_posix()
        if charset is None or path.suffix not in (".xml", ".html", ".txt", ".srt"):
            continue
        data = path.read_bytes()
        try:
            text = data.decode(charset)
        except ValueError:  # damaged on purpose
            continue
        is_feed, is_page = path.suffix == ".xml" and "<rss" in text.lower(), path.suffix == ".html"
        title = TITLE.search(text)
        if (is_feed or is_page) and title and _words(CDATA.sub(r"\1", title[1])):
            expected = html.unescape(CDATA.sub(r"\1", title[1])) if is_feed else title[1]
            what, given = ("feeds", "text/xml") if is_feed else ("pages", "text/html")
            yield _titled(f"{what} of the web, charset as the file says", name, data, given, expected)
        if words := " ".join(re.findall(r"[^\W\d_a-zA-Z]{2,}", text)[:8])[:LONG]:
            rss = f'<?xml version="1.0" encoding="{charset}"?><rss><channel><title>{words}</title></channel></rss>'
            body = json.dumps({"title": words}, ensure_ascii=False)
            yield _titled("words of them in RSS, charset declared", name, rss.encode(charset), "text/xml", words)
            kind = f"application/json; charset={charset}"
            yield _titled("words of them in JSON, charset in the header", name, body.encode(charset), kind, words)


def _titled(case: str, name: str, data: bytes, content_type: str, expected: str) -> Case:
    def is_right(see: Look) -> bool:
        return same(expected, see(data, content_type, {"title": "title"}).fields.get("title"))

    return Case(case, name, is_right)


def _codec(folder: str) -> str | None:
    name = re.sub(r"-(?!\d|r\b|jp\b|kr\b|8|16|32)[a-z]+$", "", folder.lower())
    try:
        "".encode(name)
    except LookupError:
        return None
    return name


# Pictures.


def picture_cases(folder: Path) -> Iterator[Case]:
    imagesize = _module(folder / "imagesize" / "imagesize" / "imagesize.py")
    for path in sorted((folder / "pillow").rglob("Tests/images/**/*")):
        kind = {**PICTURES, **BY_EYE}.get(path.suffix)
        if kind is None:
            continue
        size = _size(imagesize, path) if path.suffix in PICTURES else None
        if size is not None and min(size) < 1:
            continue
        name = path.relative_to(folder).as_posix()
        for case, given in (("with its type", kind), ("as text/html", "text/html")):
            yield _measured(f"pictures of Pillow's tests, {case}", name, path, given, size)


def _size(imagesize: ModuleType, path: Path) -> tuple[int, int]:
    try:
        width, height = imagesize.get(str(path))
    except Exception:  # broad: the file is damaged
        return 0, 0
    return width, height


def _measured(case: str, name: str, path: Path, content_type: str, size: tuple[int, int] | None) -> Case:
    def is_right(see: Look) -> bool:
        found = see(path.read_bytes(), content_type, {}).size
        return found is not None and (size is None or sorted(found) == sorted(size))  # it may be turned by its EXIF

    return Case(case, name, is_right)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


# The material.


def fetch(folder: Path) -> None:
    """Download and unpack what is not there yet. pip compares the sums."""
    for pin in tomllib.loads(PINS.read_text())["archive"]:
        to, done = folder / pin["name"], folder / f"{pin['name']}.{pin['sha256'][:16]}"
        if done.exists():
            continue
        with tempfile.TemporaryDirectory(prefix="packhorse-fetch-") as work:
            wanted = Path(work) / "wanted.txt"
            wanted.write_text(f"{pin['name']}=={pin['version']} --hash=sha256:{pin['sha256']}")
            form = ["--only-binary", ":all:"] if pin["name"] == "imagesize" else ["--no-binary", pin["name"]]
            exactly = ["--no-deps", "--require-hashes", "--requirement", str(wanted), "--dest", work, *form]
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *exactly], check=True)
            [archive] = [*Path(work).glob("*.tar.gz"), *Path(work).glob("*.whl")]
            to.mkdir(parents=True, exist_ok=True)
            if archive.suffix == ".whl":
                with zipfile.ZipFile(archive) as wheel:
                    wheel.extractall(to)  # noqa: S202 (it is pinned)
            else:
                checked: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4
                with tarfile.open(archive) as tarball:
                    tarball.extractall(to, **checked)  # noqa: S202 (it is pinned)
        done.touch()


def is_held_out(file: str) -> bool:
    return hashlib.sha256(file.encode()).digest()[0] % 2 == 1


def cases(folder: Path, part: str) -> Iterator[Case]:
    for made in (feed_cases, charset_cases, picture_cases):
        yield from (case for case in made(folder) if is_held_out(case.file) == (part == "held-out"))


def run(folder: Path, part: str, see: Look = look, wrong: Callable[[Case], None] = lambda _: None) -> dict[str, Any]:
    """Right answers and all questions, by case."""
    counts: dict[str, list[int]] = {}
    for case in cases(folder, part):
        right = case.is_right(see)
        if not right:
            wrong(case)
        count = counts.setdefault(case.name, [0, 0])
        count[0] += right
        count[1] += 1
    return counts


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the material is kept")
    parser.add_argument("--part", choices=("held-out", "seen"), default="held-out")
    parser.add_argument("--wrong", action="store_true", help="name the files that are read wrongly (only with seen)")
    given = parser.parse_args()
    fetch(given.folder)
    is_shown = given.wrong and given.part == "seen"
    found = run(given.folder, given.part, wrong=lambda case: say(f"{case.name}: {case.file}") if is_shown else None)
    for name, (right, count) in found.items():
        say(f"{name:50} {right:5} of {count:5}  {right / count:6.1%}")


if __name__ == "__main__":
    main()
