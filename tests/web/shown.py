"""What tests of a job's page share: a server with their own app, jobs that wait for a test, and hostile words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from packhorse.client import Client
from tests.http.conftest import run
from tests.http.processes import Place, Server, until

LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "small": {"viewport": {"width": 360, "height": 740}},
}

SAMPLE = Path(__file__).with_name("sample.py")

HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "javascript:window.hacked=1",
    "{{ 7 * 7 }}${7*7}</pre></title><svg onload=window.hacked=1>",
    "'; window.hacked=1; //",
)
"""What people write who want more than they are given."""


@contextmanager
def shown(folder: Path, **settings: Any) -> Iterator[Server]:
    with run(Place(folder, app=str(SAMPLE), **settings)) as server:
        yield server


def open_all(page: Page) -> None:
    """Everything that is folded up."""
    page.evaluate("for (const each of document.querySelectorAll('main details')) each.open = true")


class Gated:
    """A job of two stages, each of which waits for the test."""

    def __init__(self, client: Client, folder: Path, **parameters: Any) -> None:
        self._client = client
        self._gate = folder / "gate"
        self.id: str = client.submit("steps", {"gate": str(self._gate), **parameters}, user="ann")["job_id"]

    def open(self, which: int) -> None:
        Path(f"{self._gate}.{which}").touch()

    def reaches(self, stage: str) -> None:
        """Wait until that stage runs."""
        until(lambda: self._client.get(self.id)["stages"][stage]["status"] == "running", 60)

    def ends(self) -> Any:
        self.open(1)
        self.open(2)
        return self._client.wait(self.id)
