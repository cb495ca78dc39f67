from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from packhorse import cli, log
from tests.cli.house import Dev, House, Said


class Tell(Protocol):
    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None) -> Said: ...


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Tell:
    """The command line in this process, in a folder of its own: the same code, without the start of an interpreter."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PACKHORSE_")]:
        monkeypatch.delenv(name)

    def told(*arguments: str, env: Mapping[str, str] | None = None) -> Said:
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        level = log.logger.level
        try:
            code = cli.run(arguments)
        finally:
            log.logger.setLevel(level)  # `serve` and `worker` set it
        return Said(code, *capfd.readouterr())

    return told


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.end()


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """One of its own, to be killed and changed."""
    dev = Dev(tmp_path)
    yield dev
    dev.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """One for all tests of a module, which leave it as it is."""
    dev = Dev(tmp_path_factory.mktemp("shared"))
    yield dev
    dev.end()
