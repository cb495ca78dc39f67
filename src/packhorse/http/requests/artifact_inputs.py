"""An artifact of an earlier job as input of the next: ``job:{id}/artifacts/{name}`` where a file is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from packhorse.auth.access import Caller
from packhorse.define.validation import NOT_VALID, FieldError, invalid
from packhorse.errors import BlobNotFound, Forbidden, NotFound
from packhorse.http.requests.multipart import MOST_PARTS
from packhorse.http.services import Tools
from packhorse.jobs import artifacts
from packhorse.jobs.catalog import Published
from packhorse.jobs.submit import Intake

REFERENCE = re.compile(r"job:(?P<job_id>[^/]{1,100})/artifacts/(?P<name>.{1,1024})", re.DOTALL)

UNSENT = "A file has to be sent as a part of a form, with a file name, or be named as job:{id}/artifacts/{name}"


def mistakes(pipeline: Published, values: Mapping[str, Any]) -> list[FieldError]:
    """Where a text stands for a file and names none that a job could have made."""
    if not pipeline.files:
        return []
    if len(list(_texts(pipeline, values))) > MOST_PARTS:
        return [{"field": "parameters", "message": f"No more than {MOST_PARTS} files can be taken at a time"}]
    wrong = {name for name, text in _texts(pipeline, values) if not REFERENCE.fullmatch(text)}
    return [{"field": name, "message": UNSENT} for name in sorted(wrong)]


class Earlier:
    def __init__(self, tools: Tools, caller: Caller, intake: Intake) -> None:
        self._tools = tools
        self._caller = caller
        self._intake = intake

    async def taken(self, pipeline: Published, values: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with each text that names an artifact as what stands for the copy of it."""
        found = dict(values)
        for name, text in list(_texts(pipeline, values)):
            reference = await self._take(pipeline, name, text)
            if pipeline.files[name] == "one":
                found[name] = reference
            else:
                found[name] = [*(each for each in found[name] if not isinstance(each, str)), reference]
        return found

    async def _take(self, pipeline: Published, name: str, text: str) -> dict[str, int]:
        """Who may not read it may not use it, either; a foreign one and a missing one look the same."""
        if "read" not in self._caller.allowed:
            raise Forbidden(scope="read")
        named = REFERENCE.fullmatch(text)
        assert named is not None  # looked at before
        try:
            job = await self._tools.job(self._caller, named["job_id"])
            file = await artifacts.find_artifact(self._tools.store, job.id, named["name"])
            return await self._intake.copy(name, file, pipeline.accepts(name))
        except (NotFound, BlobNotFound) as error:
            raise invalid(NOT_VALID, [{"field": name, "message": f"There is no {text}"}]) from error


def _texts(pipeline: Published, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in pipeline.files:
        given = values.get(name)
        for each in given if isinstance(given, list) else [given]:
            if isinstance(each, str):
                yield name, each
