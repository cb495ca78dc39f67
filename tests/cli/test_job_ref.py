"""Jobs named by a part of their id, against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from packhorse.cli.options import NEWEST, resolve_job
from packhorse.client import Client
from tests.cli.conftest import Tell
from tests.http.conftest import publish
from tests.http.processes import Place, Server, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = Place(tmp_path_factory.mktemp("place"))
    publish(place)
    with served(place) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def ask(tell: Tell, server: Server, monkeypatch: pytest.MonkeyPatch) -> Tell:
    monkeypatch.setenv("PACKHORSE_URL", server.url)
    return tell


def submitted(client: Client) -> str:
    return str(client.submit("add", {"a": 1}, delay="1h")["job_id"])


@pytest.mark.parametrize("part", [slice(20), slice(23), slice(35), slice(-12, None), slice(-8, None)], ids=str)
def test_a_part_of_an_id_names_its_job(ask: Tell, client: Client, part: slice) -> None:
    submitted(client)
    job_id = submitted(client)
    submitted(client)

    said = ask("show", job_id[part], "--json")

    assert said.code == 0, said.err
    assert said.json["job_id"] == job_id


def test_the_last_id_that_begins_so_is_named_too(ask: Tell, client: Client) -> None:
    job_id = next(each for each in iter(lambda: submitted(client), "") if each.endswith("f"))

    said = ask("show", job_id[:-1], "--json")

    assert said.code == 0, said.err
    assert said.json["job_id"] == job_id


@pytest.mark.parametrize("part", ["ffff", "f" * 31])
def test_the_last_of_all_ids_is_behind_every_job(ask: Tell, part: str) -> None:
    assert ask("show", part).code == 3


def test_every_command_that_takes_a_job_takes_a_part_of_its_id(ask: Tell, client: Client) -> None:
    job_id = submitted(client)
    short = job_id[-12:]

    told = {
        "logs": ask("logs", short),
        "artifacts": ask("artifacts", short),
        "tokens": ask("tokens", "list", short),
        "failures": ask("failures", "--job", short),
        "result": ask("result", short),
        "promote": ask("promote", short),
        "cancel": ask("cancel", short),
        "retry": ask("retry", short),
        "cancel two": ask("cancel", short, job_id[:23]),
        "delete": ask("delete", short),
    }

    refused = {name: said.err for name, said in told.items() if said.code}
    assert set(refused) == {"result", "promote"}  # it has not run
    assert all("no job" not in each for each in refused.values())
    assert f"Job {job_id} is deleted." in told["delete"].out


def test_a_beginning_of_several_names_none_and_says_which(ask: Tell, client: Client) -> None:
    ids = [submitted(client), submitted(client)]
    begins = ids[0][:6]

    said = ask("cancel", begins)

    assert said.code == 3
    assert f"{begins} matches several jobs:" in said.err
    assert f"{ids[-1]} (add, pending)" in said.err
    assert {client.get(each)["status"] for each in ids} == {"pending"}


@pytest.mark.parametrize("part", ["deadbeef0000", "nothing", "0", "x-y"])
def test_what_names_no_job_is_said_as_ever(ask: Tell, part: str) -> None:
    said = ask("show", part)

    assert said.code == 3
    assert f"There is no job '{part}'." in said.err


def test_so_few_digits_that_an_older_job_may_end_the_same_name_none(ask: Tell, client: Client) -> None:
    job_id = submitted(client)

    said = ask("delete", job_id[-7:])

    assert said.code == 3
    assert f"There is no job '{job_id[-7:]}'." in said.err
    assert client.get(job_id)["status"] == "pending"


def test_dots_say_which_side_is_left_out(ask: Tell, client: Client) -> None:
    job_id = submitted(client)

    assert ask("show", f"…{job_id[-12:]}").code == 0
    assert ask("show", f"{job_id[:23]}…").code == 0
    assert ask("show", f"…{job_id[:23]}").code == 3
    assert ask("show", f"{job_id[-12:]}…").code == 3


class Counting:
    """A client that is asked for lists, and says how often and how much."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    def list(self, *, limit: int, cursor: str | None = None) -> dict[str, list[dict[str, str]]]:
        self.limits.append(limit)
        return {"items": []}


def test_a_whole_id_costs_nothing_and_a_part_of_one_no_more_the_more_jobs_there_are() -> None:
    whole, part = Counting(), Counting()

    resolve_job(whole, "019a8b2c-0000-7000-8000-000000000000")  # type: ignore[arg-type]
    resolve_job(part, "019a8b2c")  # type: ignore[arg-type]

    assert whole.limits == []
    assert len(part.limits) == 2
    assert max(part.limits) == NEWEST


def test_an_old_job_is_found_by_its_beginning(ask: Tell, client: Client) -> None:
    """The page of its neighbours begins at it, however many came after it."""
    job_id = submitted(client)
    for _ in range(12):
        submitted(client)

    assert ask("show", job_id[:23], "--json").json["job_id"] == job_id
