from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from packhorse.client import Client
from tests.http.conftest import run
from tests.http.processes import Place, Server
from tests.servers.browser import browsing
from tests.web.browser import person


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one module: while it is open, playwright has an event loop in this thread, and no other can run."""
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without keys, and a worker, for one module."""
    with run(Place(tmp_path_factory.mktemp("running"))) as server:
        yield server


@pytest.fixture
def client(running: Server) -> Iterator[Client]:
    with Client(running.url) as client:
        yield client


@pytest.fixture
def page(browser: Browser, running: Server) -> Iterator[Page]:
    with person(browser, running.url) as page:
        yield page
