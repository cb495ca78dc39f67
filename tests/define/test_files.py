from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.define.files import BIDI, File, placed, referred, sanitised
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
    assert sanitised(name) == safe


def test_a_long_name_is_cut_before_its_suffix() -> None:
    assert sanitised("é" * 300 + ".onnx") == "é" * 125 + ".onnx"
    assert sanitised("a." + "b" * 300) == "a." + "b" * 253


@given(st.text(st.characters(codec=None)) | st.text("./\\ \t\n\x00a\u0301\u202e", max_size=20) | st.text(min_size=200))
def test_no_name_is_unsafe(name: str) -> None:
    safe = sanitised(name)

    assert 0 < len(safe.encode()) <= 255
    assert not set(safe) & (set("/\\") | BIDI)
    assert not safe.startswith(".")
    assert safe == safe.strip()
    assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in safe)
    assert unicodedata.is_normalized("NFC", safe)
    assert sanitised(safe) == safe


@pytest.mark.parametrize("value", [{"$file": 1}, {"$file": -1}, {"$file": False}, {"$file": 0, "a": 1}, 0, "x", None])
def test_only_a_number_that_stands_for_a_file_is_one(value: object) -> None:
    assert referred({"$file": 0}, ["a"]) == "a"

    with pytest.raises(ValueError, match="file"):
        referred(value, ["a"])


@pytest.mark.parametrize("name", ["", ".", "./", "./."])
def test_an_artifact_needs_a_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="An artifact needs a name"):
        placed(name)
