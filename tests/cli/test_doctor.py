"""`packhorse doctor`: what it finds, without a server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from packhorse.blobs import open_blobs
from packhorse.cli.options import SAMPLE
from packhorse.factory import open_both, open_store
from packhorse.jobs.deployment import DESTINATION_MARK
from packhorse.settings import Settings
from tests.cli.conftest import Tell
from tests.cli.house import LONGEST, House, until
from tests.contract.blob_fixtures import stream
from tests.servers import valkey


def findings(house: House, *arguments: str) -> dict[str, dict[str, object]]:
    return {each["name"]: each for each in house.run("doctor", "--json", *arguments).json}


def test_a_fresh_folder_is_well_and_left_as_it_is(house: House) -> None:
    said = house.run("doctor", "--json")

    assert said.code == 0
    assert all(each["is_ok"] for each in said.json)
    assert said.json[0]["meaning"].startswith(f"there is no store at {house.folder}/.packhorse/packhorse.db yet")
    assert list(house.folder.iterdir()) == []


async def test_a_store_without_workers_is_a_problem(house: House) -> None:
    url = f"sqlite://{house.folder}/jobs.db"
    await (await open_store(url)).close()

    said = house.run("doctor", "--json", "--store", url)

    [workers] = [each for each in said.json if each["name"] == "workers"]
    assert (said.code, workers["state"], workers["value"]) == (1, "bad", "none")
    assert "packhorse worker FILE" in workers["meaning"]


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_a_store_that_was_named_and_is_not_there_is_bad(house: House, how: str) -> None:
    url = f"sqlite://{house.folder}/other.db"

    said = house.run(
        "doctor",
        "--json",
        *(["--store", url] if how == "flag" else []),
        env={"PACKHORSE_STORE": url} if how == "environment" else {},
    )

    assert said.code == 1
    assert said.json[0]["meaning"].startswith(f"there is no store at {house.folder}/other.db yet")
    assert list(house.folder.iterdir()) == []


def test_files_are_tried_out_and_nothing_of_it_is_left(house: House) -> None:
    said = house.run("doctor", "--blobs", f"file://{house.folder}/files")

    assert said.code == 0
    assert "wrote, read and deleted a test file" in said.out
    assert list((house.folder / "files").rglob("*/*")) == []


async def mark_of_another(folder: Path) -> None:
    blobs = open_blobs(folder.as_uri())
    await blobs.put(DESTINATION_MARK, stream(b'{"id":"another"}'))
    await blobs.close()


@pytest.mark.parametrize("fault", ["none", "no folder", "another's"])
def test_the_destination_of_published_files_is_tried_out(tell: Tell, tmp_path: Path, fault: str) -> None:
    (tmp_path / "blocked").write_text("a file")
    (tmp_path / "out").mkdir()
    if fault == "another's":
        asyncio.run(mark_of_another(tmp_path / "out"))
    place = tmp_path / ("blocked/out" if fault == "no folder" else "out")

    said = tell("doctor", "--json", env={"PACKHORSE_PUBLISH_TO": place.as_uri()})
    [found] = [each for each in said.json if each["name"] == "published files"]

    assert (found["state"], said.code) == (("ok", 0) if fault == "none" else ("bad", 1))
    assert "wrote, read and deleted" in found["meaning"] or fault != "none"
    assert "another" in found["meaning"] or fault != "another's"
    assert [each for each in (tmp_path / "out").rglob("*/*") if "doctor" in str(each) and each.is_file()] == []


def test_files_that_cannot_be_written_are_bad_and_exit_1(house: House) -> None:
    said = house.run("doctor", "--blobs", "file:///proc/nowhere")

    assert said.code == 1
    assert "BAD  files" in said.out


def test_a_store_that_cannot_be_opened_is_bad_and_says_why(house: House) -> None:
    (house.folder / "file").write_text("not a database " * 100)

    said = house.run("doctor", "--json", "--store", f"sqlite://{house.folder}/file")

    assert said.code == 1
    [store] = [each for each in said.json if each["name"] == "store"]
    assert not store["is_ok"]
    assert "not a database" in store["meaning"]


def test_jobs_that_no_worker_will_take_are_bad_and_say_what_is_missing(house: House) -> None:
    submit = 'from packhorse.sample import app, words; words.submit("a b"); words.submit("c"); app.close()'
    subprocess.run([sys.executable, "-c", submit], cwd=house.folder, env=house.env, check=True, timeout=LONGEST)

    said = house.run("doctor", "--json")

    [waiting] = [each for each in said.json if each["name"] == "waiting jobs"]
    assert said.code == 1
    assert waiting["value"] == "2 jobs"
    assert waiting["meaning"] == "no live worker serves queue `default`"


def test_it_warns_if_only_the_prefix_of_another_environment_holds_data(tell: Tell) -> None:
    store = f"{valkey.shared().url()}/9"
    valkey.shared().client(db=9).flushdb()
    asyncio.run(started_once(store, "dev:"))
    env = {"PACKHORSE_STORE": store, "PACKHORSE_ENV": "production"}

    [warned] = [each for each in tell("doctor", "--json", env=env).json if each["name"] == "jobs of this prefix"]
    right = tell("doctor", "--json", env=env | {"PACKHORSE_ENV": "development"}).json
    asyncio.run(started_once(store, "prod:"))
    both = tell("doctor", "--json", env=env).json

    assert (warned["state"], warned["value"]) == ("bad", "prod:")
    assert "but a deployment under dev:." in warned["meaning"]
    assert not [each for each in (*right, *both) if each["name"] == "jobs of this prefix"]


async def started_once(url: str, prefix: str) -> None:
    """As a server or a worker leaves it that has started on this store."""
    with TemporaryDirectory() as folder:
        store, blobs = await open_both(Settings(store=url, prefix=prefix, blobs=f"file://{folder}"))
        await store.close()
        await blobs.close()


def test_it_sees_a_worker_its_pipelines_and_its_death(house: House) -> None:
    worker = house.start("worker", SAMPLE)
    until(lambda: house.said(f"from store sqlite://{house.folder}/.packhorse/packhorse.db"))

    [alive] = [each for name, each in findings(house).items() if name.startswith("worker ")]
    worker.kill()
    worker.wait()
    found = findings(house)
    [dead] = [each for name, each in found.items() if name.startswith("worker ")]

    assert alive["is_ok"]
    assert f"pid {worker.pid} on" in str(alive["meaning"])
    assert not dead["is_ok"]
    assert "is dead" in str(dead["meaning"])
    assert found["pipeline report"]["value"] == "of sample"


def test_a_lost_store_starts_nothing_and_deletes_nothing_until_it_adopts_the_files(house: House) -> None:
    submit = 'from packhorse.sample import app, words; words.submit("a b"); app.close()'
    subprocess.run([sys.executable, "-c", submit], cwd=house.folder, env=house.env, check=True, timeout=LONGEST)
    for each in (house.folder / ".packhorse").glob("packhorse.db*"):
        each.unlink()

    absent = findings(house)["deployment"]
    started = house.run("worker", SAMPLE)
    empty = findings(house)["deployment"]
    asked = house.run("adopt")
    adopted = house.run("adopt", "--yes")
    again = house.run("adopt", "--yes")

    assert [absent["state"], empty["state"]] == ["bad", "bad"]
    assert (started.code, "packhorse adopt" in started.err) == (2, True)
    assert (asked.code, asked.last_line) == (1, "Nothing was changed. To do it, add: --yes")
    assert f"(store sqlite://{house.folder}/.packhorse/packhorse.db)" in asked.out
    assert (adopted.code, again.code) == (0, 0)
    assert findings(house)["deployment"]["state"] == "ok"
