"""The document of the video analysis (003): its own variables, prefixes and keys, against running processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import redis

from tests.apps.places import redis_and_s3, stand
from tests.apps.test_video_decoder import seconds, write
from tests.cli.house import UNLIMITED, House, until
from tests.servers.valkey import Valkey

PASSWORD = "accusys"  # as in section 9

SECTION_9 = """
# Redis 連接
REDIS_URL=redis://localhost:6379
REDIS_PASSWORD=accusys
REDIS_DB=0

# Redis Key Prefix (可選,預設: momentry:)
MOMENTRY_REDIS_PREFIX=momentry:
"""
PRODUCTION = """
# 生產環境範例 (.env)
MOMENTRY_SERVER_PORT=3002
MOMENTRY_REDIS_PREFIX=momentry:
"""
DEVELOPMENT = """
# 開發環境範例 (.env.development)
MOMENTRY_SERVER_PORT=3003
MOMENTRY_REDIS_PREFIX=momentry_dev:
"""
OURS = {"MOMENTRY_SERVER_PORT": "PACKHORSE_PORT", "MOMENTRY_REDIS_PREFIX": "PACKHORSE_PREFIX"}
"""Variables that carry the name of the product in the document."""

APP = """
import os

from packhorse import App

app = App("momentry")


@app.job
def variables() -> list[str]:
    return sorted(name for name in os.environ if name.startswith(("REDIS_", "PACKHORSE_")))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    server = Valkey("--requirepass", PASSWORD)
    server.password = PASSWORD
    server.start()
    yield server
    server.remove()


@pytest.fixture
def house(tmp_path: Path, server: Valkey) -> Iterator[House]:
    """A folder with the files of section 9. Only the product's name and the ports of this machine are replaced."""
    house = House(tmp_path)
    house.env = {name: value for name, value in house.env.items() if not name.startswith("REDIS_")}
    places = {"localhost:6379": f"localhost:{server.port}", "3003": str(house.port), **OURS}
    for name, text in {
        ".env": SECTION_9 + PRODUCTION + "PACKHORSE_STORE=redis\n",
        ".env.development": DEVELOPMENT,
    }.items():
        for theirs, ours in places.items():
            text = text.replace(theirs, ours)
        (tmp_path / name).write_text(text)
    (tmp_path / "momentry.py").write_text(APP)
    yield house
    house.end()


def keys(server: Valkey) -> set[str]:
    client: redis.Redis = server.client(decode_responses=True)
    with client:
        return set(client.scan_iter("*", count=1000))


def test_development_runs_by_the_variables_of_section_9(house: House, server: Valkey) -> None:
    house.start("dev", "momentry.py", env={**UNLIMITED, "PACKHORSE_ENV": "development", "REDIS_PASSWORD": PASSWORD})
    until(lambda: os.path.exists(house.output) and house.said(f"momentry.py runs at {house.url}"))

    job = house.ask("submit", "variables", "--wait", "--json").json

    assert (job["status"], job["result"]) == ("completed", [])  # the stage sees neither address nor password
    found = keys(server)
    assert {f"momentry_dev:job:{job['job_id']}", "momentry_dev:jobs:completed", "momentry_dev:health:current"} <= found
    assert all(key.startswith("momentry_dev:") for key in found)


@pytest.mark.parametrize(
    ("environment", "prefix", "port"), [("production", "momentry:", 3002), ("development", "momentry_dev:", None)]
)
def test_each_environment_has_the_port_and_prefix_of_section_2(
    house: House, environment: str, prefix: str, port: int | None
) -> None:
    found = {each["name"]: each for each in house.run("config", "--json", env={"PACKHORSE_ENV": environment}).json}

    origin = ".env" if environment == "production" else ".env.development"
    assert (found["PACKHORSE_PREFIX"]["value"], found["PACKHORSE_PREFIX"]["origin"]) == (prefix, origin)
    assert (found["PACKHORSE_PORT"]["value"], found["PACKHORSE_PORT"]["origin"]) == (port or house.port, origin)
    assert found["PACKHORSE_STORE"]["origin"] == ".env, with REDIS_DB (.env), REDIS_PASSWORD (.env), REDIS_URL (.env)"
    assert PASSWORD not in str(found)


JOB = """
{
  "uuid": "5dea6618a606e7c7",
  "video_path": "/path/to/video.mp4",
  "status": "running"
}
"""
"""The beginning of the job in section 7."""


def test_a_job_is_submitted_with_the_video_path_of_section_7(tmp_path: Path) -> None:
    """Below a folder of this test instead of `/path/to`."""
    given = json.loads(JOB.replace("/path/to", f"{tmp_path}/path/to"))
    video = Path(given["video_path"])
    video.parent.mkdir(parents=True)
    (tmp_path / "home").mkdir()
    write(video, seconds(1))
    (tmp_path / "video.mp4").write_bytes(video.read_bytes())
    asked = {"pipeline": "analyse", "parameters": {"video_path": given["video_path"], "processors": ["cut"]}}
    with stand(tmp_path / "home", "packhorse_video:app", redis_and_s3, input_folders=str(video.parent)) as running:
        running.ready("analyse")
        accepted = httpx2.post(f"{running.server.api}/jobs", json=asked)
        asked["parameters"] = {"video_path": str(tmp_path / "video.mp4")}
        refused = httpx2.post(f"{running.server.api}/jobs", json=asked)

        assert accepted.status_code == 202, accepted.text
        job = running.client.wait(accepted.json()["job_id"], 120)

    assert (job["status"], job["source_filename"]) == ("completed", "video.mp4")
    assert job["result"]["found"].keys() == {"cut"}
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "video")
