"""Forms that no browser sends: refused before they cost anything, and remembered by nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from litestar._parsers import parse_url_encoded_form_data  # where the framework would keep it
from litestar.testing import AsyncTestClient

from tests.http.processes import Place
from tests.http.unserved import unserved

Http = AsyncTestClient[Any]
ROOT = "http://127.0.0.1"
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Origin": ROOT}


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[Http]:
    async with unserved(Place(tmp_path, keyless=False).settings, f"{ROOT}/") as http:
        yield http


async def test_a_form_that_anybody_may_send_is_small(http: Http) -> None:
    answer = await http.post("login", content=b"key=" + b"x" * 20_000, headers=FORM)

    assert answer.status_code == 413


async def test_a_form_has_only_so_many_fields(http: Http) -> None:
    answer = await http.post("login", content="&".join(map(str, range(2000))).encode(), headers=FORM)

    assert answer.status_code == 413


async def test_what_is_no_form_is_refused(http: Http) -> None:
    answer = await http.post("login", content=b"{}", headers=FORM | {"Content-Type": "application/json"})

    assert answer.status_code == 415


async def test_what_was_typed_is_kept_by_nobody(http: Http) -> None:
    before = parse_url_encoded_form_data.cache_info().currsize
    await http.post("login", content=b"key=ph_typed&next=", headers=FORM)

    assert parse_url_encoded_form_data.cache_info().currsize == before
