"""``app.schedule``: what an app declares, and what it is told when that cannot work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packhorse import App, Context, File, Params
from packhorse.errors import DefinitionError


class Fetch(Params):
    url: str
    times: int = 1
    body: File | None = None


def app_with(**options: Any) -> App:
    app = App("app")
    fetch = app.pipeline("fetch", Fetch)

    @fetch.stage
    def get(ctx: Context, p: Fetch) -> str:
        return p.url

    given = {"cron": "0 3 * * *", **options}
    app.schedule(given.pop("id", "nightly"), fetch, given.pop("params", Fetch(url="u")), **given)
    return app


def test_a_declared_schedule_says_all_that_was_said() -> None:
    app = app_with(
        zone="Europe/Berlin", user="ann", overlap="queue", misfire="catch_up", window="2h", labels={"a": "b"}
    )

    [declared] = app.code.schedules

    terms = declared.terms
    assert (declared.id, terms.pipeline, terms.parameters) == ("nightly", "fetch", b'{"url":"u","times":1,"body":null}')
    assert (terms.cron, terms.zone, terms.user, terms.active) == ("0 3 * * *", "Europe/Berlin", "ann", True)
    assert (terms.overlap, terms.misfire, terms.window, terms.labels) == ("queue", "catch_up", 7200.0, {"a": "b"})


def test_parameters_may_be_a_mapping_and_the_pipeline_a_function() -> None:
    app = App("app")

    @app.job
    def add(a: int, b: int = 2) -> int:
        return a + b

    app.schedule("adding", add, {"a": 1}, cron="* * * * *")

    assert app.code.schedules[0].terms.parameters == b'{"a":1,"b":2}'


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"zone": "Mars/Base"}, "zone"),
        ({"id": "a b"}, "is not a valid name"),
        ({"params": Fetch(url="u", body=File(Path(__file__)))}, "cannot hold files"),
        ({"params": {"nome": 1}}, "nome"),
        ({"window": "soon"}, "not a duration"),
        ({"overlap": "allow"}, "overlap"),
        ({"surprise": 1}, "no option 'surprise'"),
    ],
)
def test_what_cannot_work_is_refused_where_it_stands(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DefinitionError, match=sentence) as refused:
        app_with(**options)

    assert "test_schedules.py" in refused.value.message


def test_two_schedules_of_one_id_are_refused() -> None:
    app = app_with()
    [pipeline] = app.code.pipelines.values()

    with pytest.raises(DefinitionError, match="two schedules"):
        app.schedule("nightly", pipeline, Fetch(url="u"), cron="0 4 * * *")
    with pytest.raises(DefinitionError, match="another app"):
        App("other").schedule("nightly", pipeline, Fetch(url="u"), cron="0 4 * * *")


def test_apps_without_schedules_load_no_calendar() -> None:
    code = "import sys, packhorse; packhorse.App('a'); print('cronsim' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
