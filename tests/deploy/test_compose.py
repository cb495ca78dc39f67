"""compose.yaml, without an engine: it is read, its names resolve, and what it describes is run here."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from packhorse.cli.registry import app
from packhorse.client import Client
from packhorse.define.options import seconds
from packhorse.errors import PackhorseError
from packhorse.factory import check
from packhorse.settings import load
from tests.cli.house import LONGEST, PACKHORSE, until
from tests.deploy.installed import ROOT
from tests.servers import postgres, seaweed
from tests.servers.ports import free_port

FILE = ROOT / "compose.yaml"
SECRETS = {"POSTGRES_PASSWORD": "p" * 32, "S3_SECRET_KEY": "s" * 32, "PACKHORSE_SECRET_KEY": "k" * 32}
"""What its first lines ask for."""


def told() -> dict[str, Any]:
    text = re.sub(r"\$\{(\w+):\?\}", lambda name: SECRETS[name[1]], FILE.read_text())
    found: dict[str, Any] = yaml.safe_load(text)
    return found


COMPOSE = told()
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if "build" in each}


def test_it_has_a_store_a_bucket_an_api_and_two_workers() -> None:
    assert SERVICES.keys() == {"postgres", "s3", "api", "worker"}
    assert OURS.keys() == {"api", "worker"}
    assert SERVICES["worker"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("name", OURS)
def test_every_setting_exists_and_can_be_used(name: str) -> None:
    settings = load(env=OURS[name]["environment"], folder=ROOT / "deploy").settings

    check(settings)

    assert settings.store.startswith("postgresql://")
    assert settings.secret_key == SECRETS["PACKHORSE_SECRET_KEY"]


@pytest.mark.parametrize("words", [OURS["api"]["command"], OURS["worker"]["command"]], ids=["api", "worker"])
def test_every_command_line_is_one_of_ours(words: list[str]) -> None:
    command, *_ = app.parse_args(words, print_error=False, exit_on_error=False)

    assert command.__module__.startswith("packhorse.cli.commands.")


def test_the_commands_that_its_first_lines_recommend_are_ours() -> None:
    [command] = re.findall(r"docker compose run --rm api (.*)", FILE.read_text())

    found, *_ = app.parse_args(command, print_error=False, exit_on_error=False)

    assert found.__module__.startswith("packhorse.cli.commands.")


def test_the_secrets_it_asks_for_are_those_it_names() -> None:
    asked = set(re.findall(r"\$\{(\w+)", FILE.read_text()))
    head = FILE.read_text().partition("\nx-")[0]

    assert asked == SECRETS.keys()
    assert all(name in head for name in asked)
    assert not re.findall(r"\$\{\w+(?!:\?)\W", FILE.read_text()), "each must be refused where it is not set"


def test_what_it_refers_to_is_there() -> None:
    volumes = {mount.split(":")[0] for each in SERVICES.values() for mount in each.get("volumes", ())}
    waits = {name for each in SERVICES.values() for name in each.get("depends_on", ())}
    hosts = {load(env=OURS["api"]["environment"], folder=ROOT / "deploy").settings.blobs.split("//")[2].split(":")[0]}
    hosts.add(OURS["api"]["environment"]["PACKHORSE_STORE"].split("@")[1].split("/")[0])

    assert volumes == COMPOSE["volumes"].keys()
    assert hosts == waits == {"postgres", "s3"}
    assert all("healthcheck" in SERVICES[name] for name in waits)
    assert (ROOT / OURS["api"]["build"] / "Dockerfile").is_file()


def test_store_and_bucket_are_opened_with_what_they_were_made_with() -> None:
    ours, database, bucket = OURS["api"]["environment"], SERVICES["postgres"], SERVICES["s3"]
    made = database["environment"]

    user = f"{made['POSTGRES_USER']}:{made['POSTGRES_PASSWORD']}"
    assert ours["PACKHORSE_STORE"] == f"postgresql://{user}@postgres/{made['POSTGRES_USER']}"
    assert ours["PACKHORSE_S3_ACCESS_KEY"] == bucket["environment"]["AWS_ACCESS_KEY_ID"]
    assert ours["PACKHORSE_S3_SECRET_KEY"] == bucket["environment"]["AWS_SECRET_ACCESS_KEY"]
    assert ours["PACKHORSE_BLOBS"].startswith("s3://packhorse?endpoint=http://s3:8333&")
    assert "-bucket=packhorse" in bucket["command"]


@pytest.mark.parametrize("name", OURS)
def test_a_worker_has_time_to_hand_back_what_it_cannot_finish(name: str) -> None:
    settings = load(env=OURS[name]["environment"], folder=ROOT / "deploy").settings

    assert seconds(OURS[name]["stop_grace_period"]) > settings.drain + settings.grace


@pytest.mark.parametrize("name", SERVICES)
def test_no_registry_is_named(name: str) -> None:
    first = SERVICES[name]["image"].split("/")[0]

    assert "/" not in SERVICES[name]["image"] or not re.search("[.:]|localhost", first)


@pytest.mark.parametrize("port", OURS["api"]["ports"])
def test_only_this_machine_can_reach_it_until_there_is_tls(port: str) -> None:
    address, _, inside = port.rsplit(":", 2)

    assert address == "127.0.0.1"
    assert int(inside) == load(env={}, folder=ROOT / "deploy").settings.port


def test_the_bucket_server_takes_its_command_line() -> None:
    """The program is the one in the image; it tells of a flag that it does not know before it does anything."""
    command, *flags = SERVICES["s3"]["command"]

    known = subprocess.run([seaweed.weed(), "help", command], capture_output=True, text=True).stderr

    assert "-dir string" in known
    assert [flag for flag in flags if f"\n  {flag.split('=')[0]}" not in known] == []


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Its API and its two workers as processes, with PostgreSQL and the bucket where the tests have them; and a key."""
    port = free_port()
    here = {
        "PACKHORSE_STORE": postgres.server().url(),
        "PACKHORSE_BLOBS": seaweed.running().place(),
        "PACKHORSE_S3_ACCESS_KEY": seaweed.KEYS.access,
        "PACKHORSE_S3_SECRET_KEY": seaweed.KEYS.secret,
        "PACKHORSE_PORT": str(port),
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
    names = ["api"] + ["worker"] * SERVICES["worker"]["deploy"]["replicas"]
    started = []
    with (tmp_path / "log").open("ab") as log:
        for name in names:
            more = here | ({"PACKHORSE_METRICS_PORT": str(free_port())} if name == "worker" else {})
            process = subprocess.Popen(
                [*PACKHORSE, *SERVICES[name]["command"]],
                cwd=tmp_path,
                env=clean | SERVICES[name]["environment"] | more,
                stdout=log,
                stderr=log,
            )
            started.append(process)
    try:
        made = subprocess.run(
            [*PACKHORSE, "keys", "create", "--scope", "admin", "--name", "ops"],
            cwd=tmp_path,
            env=clean | SERVICES["api"]["environment"] | here,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
        with Client(f"http://127.0.0.1:{port}", key=made.stdout.split()[-1]) as client:
            yield client
    finally:
        for process in started:
            process.terminate()
        assert [process.wait(LONGEST + 20) for process in started] == [0] * len(started), (tmp_path / "log").read_text()


def test_what_it_describes_carries_a_job_from_file_to_file(client: Client, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("# one\na fine day\n# two\nfor packhorses\n")

    def two_workers() -> bool:
        try:
            return len([each for each in client.workers() if each["state"] == "alive"]) == 2
        except PackhorseError:
            return False

    until(two_workers)
    job = client.submit("report", files={"text": text}, user="ann")
    ended = client.wait(job["job_id"], LONGEST)
    result = client.result(job["job_id"], tmp_path)

    assert ended["status"] == "completed"
    assert '"words": 5' in Path(str(result)).read_text()
