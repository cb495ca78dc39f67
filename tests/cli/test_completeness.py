"""Whatever can be asked of the server can be asked from the command line."""

from __future__ import annotations

import re
from pathlib import Path

import packhorse.cli
from packhorse.client import Client

ELSEWHERE = {
    "close": "no call",
    "wait": "`submit --wait` and `show --follow` follow the events, which tell more",
    "iterate": "`jobs --limit` pages by itself",
    "destinations": "`promote` names those there are when it is given another",
    "history": "`show --follow` tells the events of the current run; the page of a job has those of earlier runs",
    "health": "`doctor` looks for itself, since it must work without a server",
    "job_config": "the same schedule in other words: `schedules show`",
    "job_configs": "the same schedules in other words: `schedules`",
    "job_status": "the same runs in other words: `schedules runs`",
    "put_job_config": "the same schedule in other words: `schedules put`",
    "trigger_schedule": "for other systems: `schedules token` prints what they call",
    "schedule_version": "`schedules history` and `diff` show what each version says",
}
"""Calls of the client that no command makes, and why that is no loss."""


def test_every_call_has_a_command() -> None:
    source = "\n".join(path.read_text() for path in Path(packhorse.cli.__file__).parent.rglob("*.py"))
    calls = {name for name in dir(Client) if not name.startswith("_")}

    made = set(re.findall(r"\b(?:client|server)\.(\w+)\b", source))

    assert sorted(calls - made) == sorted(ELSEWHERE)
