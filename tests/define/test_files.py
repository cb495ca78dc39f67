from __future__ import annotations

import hashlib
import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.blobs.base import check_key
from packhorse.define.files import BIDI, File, artifact_key, artifact_name, file_at, sanitize_name
from packhorse.errors import InvalidInput


@pytest.fixture
def file(tmp_path: Path) -> File:
    (tmp_path / "m.onnx").write_bytes(b"bytes")
    return File(tmp_path / "m.onnx")


def test_a_file_tells_its_content(file: File) -> None:
    with file.open() as content:
        assert content.read() == b"bytes"
    assert file.read_bytes() == b"bytes"
    assert file.read_text() == "bytes"
    assert file.size == 5
    assert file.sha256 == hashlib.sha256(b"bytes").hexdigest()


def test_a_file_works_wherever_python_takes_a_path(file: File, tmp_path: Path) -> None:
    with open(file, "rb") as content:
        assert content.read() == b"bytes"
    assert shutil.copy(file, tmp_path / "copy") == tmp_path / "copy"
    assert Path(file).name == "m.onnx"


def test_the_sum_is_computed_once(file: File) -> None:
    before = file.sha256

    file.path.unlink()

    assert file.sha256 == before


def test_a_file_need_not_exist_to_be_named() -> None:
    assert File("nowhere/m.onnx").name == "m.onnx"
    assert File("m.onnx", name="Model.onnx").name == "Model.onnx"


def test_a_files_name_is_always_safe() -> None:
    assert File("x/.hidden").name == "hidden"
    assert File("m.onnx", name="../../etc/passwd").name == "passwd"


def test_files_are_equal_by_path() -> None:
    assert File("a", name="x") == File(Path("a"), name="y")
    assert len({File("a"), File("a"), File("b")}) == 2
    assert File("a") != "a"


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("photo.jpg", "photo.jpg"),
        ("a b(1).tar.gz", "a b(1).tar.gz"),
        ("C:\\Users\\ann\\photo.jpg", "photo.jpg"),
        ("../../etc/passwd", "passwd"),
        ("folder/", "folder"),
        ("..", "file"),
        ("", "file"),
        (" . . ", "file"),
        (".bashrc", "bashrc"),
        ("a\r\nSet-Cookie: b", "aSet-Cookie: b"),
        ("a\x00.jpg", "a.jpg"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        ("cafe\u0301.txt", "café.txt"),
        ("e\x07\u0301.txt", "é.txt"),
        ("\ud800.txt", "txt"),
        ("模型.onnx", "模型.onnx"),
    ],
)
def test_a_clients_name_becomes_a_safe_one(name: str, safe: str) -> None:
    assert sanitize_name(name) == safe


def test_a_long_name_is_cut_before_its_suffix() -> None:
    assert sanitize_name("é" * 300 + ".onnx") == "é" * 125 + ".onnx"
    assert sanitize_name("a." + "b" * 300) == "a." + "b" * 253


@given(st.text(st.characters(codec=None)) | st.text("./\\ \t\n\x00a\u0301\u202e", max_size=20) | st.text(min_size=200))
def test_no_name_is_unsafe(name: str) -> None:
    safe = sanitize_name(name)

    assert 0 < len(safe.encode()) <= 255
    assert not set(safe) & (set("/\\") | BIDI)
    assert not safe.startswith(".")
    assert safe == safe.strip()
    assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in safe)
    assert unicodedata.is_normalized("NFC", safe)
    assert sanitize_name(safe) == safe


@pytest.mark.parametrize("value", [{"$file": 1}, {"$file": -1}, {"$file": False}, {"$file": 0, "a": 1}, 0, "x", None])
def test_only_a_number_that_stands_for_a_file_is_one(value: object) -> None:
    assert file_at({"$file": 0}, ["a"]) == "a"

    with pytest.raises(ValueError, match="file"):
        file_at(value, ["a"])


@pytest.mark.parametrize("name", ["", ".", "./", "./."])
def test_an_artifact_needs_a_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="An artifact needs a name"):
        artifact_name(name)


AWKWARD = [
    "nef/out.nef",
    "nef/größe 漢.bin",
    'nef/a:b*c?d"e<f>g|h\\i.txt',
    "nef/100%.txt",
    "nef/100%25.txt",
    "nef/line\u2028end\x85.txt",
    "nef/" + "x" * 255,
    "nef/" + ":" * 200 + ".txt",
    "nef/" + "/".join("folder" for _ in range(150)) + "/a.bin",
    "nef/" + "y" * 1000 + ".jpeg",
]


@pytest.mark.parametrize("name", AWKWARD)
def test_any_name_ends_a_key_that_every_store_takes(name: str) -> None:
    assert check_key(f"{'p' * 127}/0199b0c0-0000-7000-8000-000000000001/{artifact_key(name)}")


def test_plain_names_stay_as_they_are_and_no_two_names_make_one_key() -> None:
    assert [artifact_key(name) for name in AWKWARD[:2]] == AWKWARD[:2]
    assert len({artifact_key(name) for name in AWKWARD}) == len(AWKWARD)
