"""/docs and the file behind it: every route, with all that can be said to it, and nothing that a browser would run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from litestar.routes import HTTPRoute
from litestar.testing import AsyncTestClient

from packhorse.web.pages.docs import curl, docs_page

Http = AsyncTestClient[Any]
Json = dict[str, Any]
ROOT = "http://127.0.0.1"

PAGES = re.compile(r"(?!/api/|/healthz|/readyz|/metrics).*")
"""What is for eyes, and the file itself."""


class Parsed(HTMLParser):
    """Raises where a tag is closed that was not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        if tag not in ("meta", "link"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def operations(told: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in told["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


async def told(http: Http) -> Json:
    found: Json = (await http.get(f"{ROOT}/openapi.json")).json()
    return found


async def test_the_file_has_every_route(http: Http) -> None:
    api = await told(http)

    routes = {
        (route.path_format, method.lower())
        for route in http.app.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods
        if method != "OPTIONS" and not (method == "HEAD" and PAGES.fullmatch(route.path_format))
    }
    assert {(path, method) for method, path, _ in operations(api)} == {
        each for each in routes if not PAGES.fullmatch(each[0])
    }


async def test_the_file_says_of_each_call_what_it_does_and_answers(http: Http) -> None:
    api = await told(http)

    for method, path, operation in operations(api):
        named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
        assert operation["description"], (method, path)
        assert named == {*re.findall(r"\{(\w+)\}", path)}
        assert any(status.startswith("2") for status in operation["responses"])
    ids = [operation["operationId"] for _, _, operation in operations(api)]
    assert len({*ids}) == len(ids)


async def test_the_page_has_every_call_with_all_there_is_to_say(http: Http) -> None:
    api = await told(http)
    page = (await http.get(f"{ROOT}/docs")).text

    sections = dict(re.findall(r'<section id="([^"]+)">(.*?)</section>', page, re.DOTALL))
    for method, path, operation in operations(api):
        section = unescape(sections[method + path.replace("/", "-").replace("{", "").replace("}", "")])
        for each in operation.get("parameters", ()):
            assert f"<code>{each['name']}</code>" in section
        for status, answer in operation["responses"].items():
            assert f"<td>{status}</td>" in section
            for kind in answer.get("content", ()) if int(status) < 400 else ():
                assert kind in section
        for content in operation.get("requestBody", {}).get("content", {}).values():
            assert all(f"<code>{name}</code>" in section for name in content["schema"].get("properties", {}))
        assert "<pre>curl " in section


async def test_the_page_is_whole_and_its_links_lead_somewhere(http: Http) -> None:
    parsed = Parsed((await http.get(f"{ROOT}/docs")).text)

    assert len({*parsed.ids}) == len(parsed.ids)
    assert {link.removeprefix("#") for link in parsed.links if link.startswith("#")} <= {*parsed.ids}
    others = {link for link in parsed.links if not link.startswith("#")}
    assert others == {"/", "/openapi.json", "/static/page.css", "/static/docs.css"}
    for link in others:
        assert (await http.get(ROOT + link)).status_code == 200


async def test_nothing_on_it_runs_or_comes_from_elsewhere(http: Http) -> None:
    answer = await http.get(f"{ROOT}/docs")

    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "script" not in Parsed(answer.text).tags
    assert not re.search(r"\son\w+=|<style|style=", answer.text)
    assert {*re.findall(r"\w+://[^/\"&]+", unescape(answer.text))} == {ROOT}


def test_what_a_description_says_is_not_markup() -> None:
    evil = '<script>alert("x")</script>'
    schema = {"type": "object", "properties": {evil: {"type": "string", "description": evil, "enum": [evil]}}}
    operation = {
        "summary": evil,
        "description": evil,
        "parameters": [{"name": evil, "in": "query", "schema": {"default": evil}, "description": evil}],
        "requestBody": {"content": {evil: {"schema": schema}}},
        "responses": {
            "200": {"description": evil, "content": {evil: {"schema": schema}}},
            "400": {"description": evil},
        },
    }
    api = {
        "info": {"title": evil, "version": evil},
        "paths": {f"/{evil}": {"get": operation}},
        "components": {"schemas": {evil: schema}},
    }

    page = docs_page(api, f"http://{evil}")

    assert "script" not in Parsed(page).tags


@pytest.mark.parametrize(("has_keys", "shown"), [(True, 1), (False, 0)])
async def test_a_command_can_be_given_to_a_shell(http: Http, has_keys: bool, shown: int) -> None:
    for method, path, operation in operations(await told(http)):
        words = shlex.split(curl(ROOT, method, path, operation, has_keys=has_keys))

        assert words[0] == "curl"
        assert words[-1] == ROOT + re.sub(r"\{(\w+)\}", lambda found: f"${found[1].upper()}", path)
        assert words.count("Authorization: Bearer $PACKHORSE_KEY") == shown


async def test_the_command_for_a_submit_says_what_has_to_be_said(http: Http) -> None:
    command = curl(ROOT, "post", "/api/v1/jobs", (await told(http))["paths"]["/api/v1/jobs"]["post"])

    assert '"pipeline": "…"' in command
    assert '"parameters": {}' in command
    assert "priority" not in command
