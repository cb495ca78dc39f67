"""The systemd units: systemd reads them where it is there, and what they say of our settings and signals holds."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from packhorse.cli.registry import app
from packhorse.define.options import seconds
from packhorse.factory import check
from packhorse.settings import load
from tests.cli.house import LONGEST, House, until
from tests.deploy.installed import ROOT

FOLDER = ROOT / "deploy" / "systemd"
SERVE, WORKER = FOLDER / "packhorse-serve.service", FOLDER / "packhorse-worker@.service"
BOTH = pytest.mark.parametrize("unit", [SERVE, WORKER], ids=["serve", "worker"])
EXPOSED = 30
"""Tenths of what `systemd-analyze security` calls exposure, from 0 to 100; a unit without any line of ours has 96."""

HARDENED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
}


def lines(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def command(unit: Path) -> list[str]:
    [line] = lines(unit)["ExecStart"]
    program, *words = line.split()
    assert program == "/opt/packhorse/bin/packhorse"
    return words


def given() -> dict[str, str]:
    """The settings of the example file."""
    pairs = re.findall(r"^(PACKHORSE_\w+)=(.*)$", (FOLDER / "packhorse.env").read_text(), re.MULTILINE)
    return {name: value for name, value in pairs if value}


@BOTH
def test_its_command_is_one_of_ours(unit: Path) -> None:
    found, *_ = app.parse_args(command(unit), print_error=False, exit_on_error=False)

    assert found.__module__.startswith("packhorse.cli.commands.")


def test_every_setting_of_the_example_exists_and_can_be_used() -> None:
    loaded = load(env=given() | {"PACKHORSE_SECRET_KEY": "k" * 64}, folder=FOLDER)

    check(loaded.settings)

    assert {name for name, origin in loaded.origins.items() if origin == "environment"} >= {"store", "blobs", "scratch"}


def test_what_the_example_names_lies_where_the_units_may_write() -> None:
    places = [
        given()[f"PACKHORSE_{name}"].partition("//")[2] or given()["PACKHORSE_SCRATCH"]
        for name in ("STORE", "BLOBS", "SCRATCH")
    ]

    for unit in (SERVE, WORKER):
        [state] = lines(unit)["StateDirectory"]
        [mode] = lines(unit)["StateDirectoryMode"]
        assert all(place.startswith(f"/var/lib/{state}/") for place in places)
        assert mode == "0700"


def test_a_worker_is_told_alone_and_has_time_to_hand_back() -> None:
    """Of its process group the worker itself sees to it: a stage that hears SIGTERM at once could not finish."""
    settings = load(env=given() | {"PACKHORSE_SECRET_KEY": "k" * 64}, folder=FOLDER).settings
    said = lines(WORKER)

    assert said["KillMode"] == ["mixed"]
    assert seconds(said["TimeoutStopSec"][0]) > settings.drain + settings.grace
    assert "KillSignal" not in said  # SIGTERM, unless somebody says otherwise


@BOTH
def test_it_is_hardened_and_comes_back(unit: Path) -> None:
    said = lines(unit)

    assert {name: said.get(name) for name in HARDENED} == {name: [value] for name, value in HARDENED.items()}
    assert said["User"] == ["packhorse"]
    assert said["Restart"] == ["always"]
    assert "MemoryDenyWriteExecute" not in said, "what compiles at run time, as torch does, would not run"


@BOTH
def test_systemd_itself_finds_no_fault_with_it(unit: Path, tmp_path: Path) -> None:
    """Where there is one. The program is put where this machine has it, or systemd would miss it."""
    analyze = shutil.which("systemd-analyze")
    copy = tmp_path / unit.name.replace("@", "@1")
    copy.write_text(
        unit.read_text().replace("/opt/packhorse/bin/packhorse", str(Path(sys.executable).with_name("packhorse")))
    )
    assert copy.read_text().count("ExecStart=/") == 1
    if analyze is None:
        return

    verified = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True)
    rated = subprocess.run(
        [analyze, "security", "--offline=yes", f"--threshold={EXPOSED}", "--no-pager", copy],
        capture_output=True,
        text=True,
    )

    ours = [line for line in verified.stderr.splitlines() if "packhorse" in line]
    assert (verified.returncode, ours) == (0, []), verified.stderr
    assert rated.returncode == 0, rated.stdout.splitlines()[-1]


@pytest.mark.parametrize("words", [command(SERVE), command(WORKER)], ids=["serve", "worker"])
def test_what_it_starts_is_ready_and_ends_well_when_told(words: list[str], house: House) -> None:
    (house.folder / "pipelines.py").write_text((ROOT / "src/packhorse/sample.py").read_text())
    words = [word.replace("/srv/packhorse/", "") for word in words]
    port = "PACKHORSE_METRICS_PORT" if "worker" in words else "PACKHORSE_PORT"
    process = house.start(*words, env={port: str(house.port)})
    until(lambda: is_ready(house.url))

    process.send_signal(signal.SIGTERM)

    assert process.wait(LONGEST) == 0


def is_ready(url: str) -> bool:
    with contextlib.suppress(httpx2.HTTPError):
        return httpx2.get(f"{url}/readyz").is_success
    return False
