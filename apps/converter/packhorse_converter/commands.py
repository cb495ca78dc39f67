"""A vendor's toolchain as command-line programs: by path, or in a container. README.md has the settings.

The file that ``CONVERTER_TOOLCHAINS`` names describes each toolchain with one command per stage (onnx, bie, nef).
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx

from packhorse_converter import graphs
from packhorse_converter.toolchain import (
    About,
    Feed,
    ModelRefused,
    Optimisation,
    Options,
    Outputs,
    Quantisation,
    Runner,
)

SETTING = "CONVERTER_TOOLCHAINS"
REFUSED = 65
"""Exit status of a program that rejects the model itself (EX_DATAERR); any other failure is retried."""
MOUNTED = "/work"
"""Where a container sees the folder with the files."""
LONGEST_MESSAGE = 500

log = logging.getLogger("packhorse")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One toolchain of the settings file."""

    onnx: list[str]
    """Checks and optimises: ``{model}`` to ``{out}``."""
    bie: list[str]
    """Quantises: ``{model}`` to ``{out}``, with ``{samples}``, a folder with one .npz file per sample."""
    nef: list[str]
    """Packs: ``{model}`` to ``{out}``, for ``{platform}``, ``{model_id}``, ``{version}``."""
    run: list[str] = []
    """Optional: runs ``{model}`` on the inputs in ``{inputs}`` (.npz) and writes ``{outputs}`` (.npz)."""
    version: str = "unknown"
    image: str = ""
    """Container image to run the commands in."""
    engine: str = "docker"
    """Program that runs containers, such as docker or podman."""
    environment: dict[str, str] = {}
    timeout: float = 1800
    """Seconds for one command."""


class CommandFailed(RuntimeError):
    """The program failed for a reason that may be gone in another attempt."""


def configured(environment: Mapping[str, str] = os.environ) -> dict[str, CommandToolchain]:
    """The toolchains of the settings file, by name. Raises ValueError that names the file, and what is wrong."""
    path = environment.get(SETTING)
    if not path:
        return {}
    try:
        found = msgspec.convert(tomllib.loads(Path(path).read_text()), dict[str, Settings])
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{SETTING}: {path}: {error}") from error
    return {name: CommandToolchain(name, each) for name, each in found.items()}


class CommandToolchain:
    """Runs one program per stage in a folder of its own; files go in and out by name."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.version = settings.version
        self._settings = settings

    def optimise(self, model: Path, to: Path, options: Options) -> Optimisation:
        loaded = graphs.load(model)
        before = graphs.report(loaded)
        with tempfile.TemporaryDirectory(dir=to.parent) as folder:
            fixed = Path(folder) / "model.onnx"
            graphs.bind_shapes(loaded, options.input_shape)
            onnx.save(loaded, fixed)
            made = self._call("onnx", self._settings.onnx, Path(folder), fixed, "out.onnx")
            after = graphs.report(graphs.load(made))
            shutil.move(made, to)
        return Optimisation(before, after)

    def quantise(
        self,
        model: Path,
        samples: Sequence[Feed],
        selection: Sequence[Feed],  # noqa: ARG002 (the program chooses by itself)
        to: Path,
        options: Options,
    ) -> Quantisation:
        with tempfile.TemporaryDirectory(dir=to.parent) as folder:
            feeds = Path(folder) / "samples"
            feeds.mkdir()
            for i, feed in enumerate(samples):
                _save(feeds / f"{i:04}.npz", feed)
            given = Path(shutil.copy(model, Path(folder) / "model.onnx"))
            made = self._call("bie", self._settings.bie, Path(folder), given, "out.bie", samples=feeds)
            shutil.move(made, to)
        unused = [f"{name} has no effect with the toolchain {self.name}." for name in _unused(options)]
        return Quantisation(method=f"chosen by {self.name}", warnings=unused)

    def pack(self, model: Path, about: About, to: Path) -> None:
        with tempfile.TemporaryDirectory(dir=to.parent) as folder:
            given = Path(shutil.copy(model, Path(folder) / "model.bie"))
            values = {"platform": str(about.platform), "model_id": str(about.model_id), "version": about.version}
            made = self._call("nef", self._settings.nef, Path(folder), given, "out.nef", **values)
            shutil.move(made, to)

    def runner(self, model: Path, *, exactly: bool = False) -> Runner | None:  # noqa: ARG002 (it has one way)
        if not self._settings.run:
            return None

        def run(feed: Feed) -> Outputs:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                given = Path(shutil.copy(model, folder / f"model{model.suffix}"))
                _save(folder / "inputs.npz", feed)
                made = self._call("run", self._settings.run, folder, given, "outputs.npz", inputs=folder / "inputs.npz")
                with np.load(made) as found:
                    return [found[each] for each in found.files]

        return run

    def integer_run(self, packed: Path) -> None:  # noqa: ARG002 (it has no such program)
        return None

    def _call(self, stage: str, command: list[str], folder: Path, model: Path, out: str, **more: Path | str) -> Path:
        """Run the program and return what it wrote. Raises `ModelRefused` and `CommandFailed`."""
        files = {"model": model, "out": folder / out, "outputs": folder / out, **more}
        mounted = Path(MOUNTED) if self._settings.image else folder
        values = {k: str(mounted / v.relative_to(folder)) if isinstance(v, Path) else v for k, v in files.items()}
        words = [_fill(word, values) for word in command]
        if self._settings.image:
            words = self._in_container(words, folder)
        environment = {**os.environ, **self._settings.environment}
        log.info("%s: %s", self.name, " ".join(words))
        try:
            done = subprocess.run(
                words,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=self._settings.timeout,
            )
        except FileNotFoundError as error:
            raise CommandFailed(f"The toolchain {self.name} is not installed: there is no {words[0]}.") from error
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(
                f"{self.name}: the {stage} command took longer than {self._settings.timeout} s."
            ) from error
        said = (done.stderr.strip() or done.stdout.strip())[-LONGEST_MESSAGE:]
        if done.returncode == REFUSED:
            raise ModelRefused(f"{self.name} rejects the model: {said}")
        if done.returncode:
            raise CommandFailed(f"{self.name}: the {stage} command ended with {done.returncode}: {said}")
        if not (folder / out).is_file():
            raise CommandFailed(f"{self.name}: the {stage} command ended without writing its output. {said}")
        return folder / out

    def _in_container(self, words: list[str], folder: Path) -> list[str]:
        """Without a network, as this user, and with nothing of this machine but the folder."""
        settings = self._settings
        given = [part for name, value in settings.environment.items() for part in ("--env", f"{name}={value}")]
        user = f"{os.getuid()}:{os.getgid()}"
        options = ["--rm", "--network=none", f"--user={user}", f"--volume={folder}:{MOUNTED}", f"--workdir={MOUNTED}"]
        return [settings.engine, "run", *options, *given, settings.image, *words]


def _fill(word: str, values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        word = word.replace("{" + name + "}", str(value))
    return word


def _unused(options: Options) -> list[str]:
    plain = Options(input_shape=options.input_shape)
    return [name for name in ("calibration", "float_layers") if getattr(options, name) != getattr(plain, name)]


def _save(path: Path, feed: Feed) -> None:
    with path.open("wb") as file:
        np.savez(file, **{name: np.asarray(value) for name, value in feed.items()})  # type: ignore[arg-type]
