"""What a person does with a schedule besides editing it: pause, resume, run, roll back, reset, delete. Each a form."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import FromPath, QueryParameter

from packhorse.errors import EditedMeanwhile, InvalidInput
from packhorse.http.services import tools_and_caller
from packhorse.jobs import schedules
from packhorse.schemas.schedules import ScheduleDocument
from packhorse.web.forms import form
from packhorse.web.pages.schedules import api_path
from packhorse.web.render import Page, moved, rendered, sentence
from packhorse.web.widgets.diff import differences

To = Annotated[int, QueryParameter(ge=1, description="The version to go back to.")]

ASKED = {
    "rollback": ("Roll back", "Make version {to} the newest again: a new version, with exactly what that one said."),
    "reset": ("Reset to the code", "Make it what the app's code declares, again."),
    "delete": ("Delete", "It fires no more. Its versions and runs can be looked at until they are purged."),
}
"""What needs a second look: the word on the button, and what it means."""

DONE = {"rollback": "Rolled back", "reset": "Reset to the code", "delete": "Deleted"}
SWITCHED = {"pause": "Paused", "resume": "Resumed"}


@post("/schedules/{schedule_id:str}/pause", scope="operate", status_code=200, include_in_schema=False)
async def pause(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    return await _switched(request, schedule_id, "pause")


@post("/schedules/{schedule_id:str}/resume", scope="operate", status_code=200, include_in_schema=False)
async def resume(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    return await _switched(request, schedule_id, "resume")


@post("/schedules/{schedule_id:str}/run", scope="operate", status_code=200, include_in_schema=False)
async def run(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    await schedules.run(*tools_and_caller(request.scope), schedule_id, api_path(request))
    return moved(request, _back(schedule_id, given), said=f"A run of {schedule_id} was asked for.")


@get("/schedules/{schedule_id:str}/rollback", scope="operate", include_in_schema=False)
async def ask_rollback(request: Page, schedule_id: FromPath[str], to: To) -> Response[bytes]:
    return await _asked(request, schedule_id, "rollback", to=to)


@post("/schedules/{schedule_id:str}/rollback", scope="operate", status_code=200, include_in_schema=False)
async def rollback(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    return await _done(request, schedule_id, "rollback")


@get("/schedules/{schedule_id:str}/reset", scope="operate", include_in_schema=False)
async def ask_reset(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    return await _asked(request, schedule_id, "reset")


@post("/schedules/{schedule_id:str}/reset", scope="operate", status_code=200, include_in_schema=False)
async def reset(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    return await _done(request, schedule_id, "reset")


@get("/schedules/{schedule_id:str}/delete", scope="operate", include_in_schema=False)
async def ask_delete(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    return await _asked(request, schedule_id, "delete")


@post("/schedules/{schedule_id:str}/delete", scope="operate", status_code=200, include_in_schema=False)
async def delete(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    return await _done(request, schedule_id, "delete")


ROUTES = [pause, resume, run, ask_rollback, rollback, ask_reset, reset, ask_delete, delete]


async def _switched(request: Page, schedule_id: str, verb: str) -> Response[bytes]:
    given = await form(request)
    tools, caller = tools_and_caller(request.scope)
    reason = str(given.get("reason", ""))
    await schedules.switch(tools, caller, schedule_id, None, active=verb == "resume", reason=reason)
    return moved(request, _back(schedule_id, given), said=f"{SWITCHED[verb]}: {schedule_id}.")


async def _asked(
    request: Page, schedule_id: str, verb: str, to: int | None = None, reason: str = "", mistake: str = ""
) -> Response[bytes]:
    """What it would change, before it is done."""
    found = await schedules.schedule(*tools_and_caller(request.scope), schedule_id)
    word, meaning = ASKED[verb]
    return rendered(
        request,
        "schedule_confirm.html",
        status=422 if mistake else 200,
        schedule=found,
        verb=verb,
        word=word,
        meaning=meaning.format(to=to),
        changes=differences(await _changes(request, found, verb, to)),
        to=to,
        reason=reason,
        mistake=mistake,
    )


async def _changes(request: Page, found: ScheduleDocument, verb: str, to: int | None) -> list[Any]:
    if verb == "rollback":
        versions = found["version"], to or 0
        return [*await schedules.diff(*tools_and_caller(request.scope), found["schedule_id"], *versions)]
    drift = found["drift"] or () if verb == "reset" else ()
    return [{"field": each["field"], "old": each["new"], "new": each["old"]} for each in drift]  # towards the code


async def _done(request: Page, schedule_id: str, verb: str) -> Response[bytes]:
    """On the version that was shown: whoever was faster is not overruled."""
    given = await form(request)
    reason, to = str(given.get("reason", "")), str(given.get("to", ""))
    number = int(to) if to.isascii() and to.isdecimal() else None
    version = str(given.get("version", ""))
    seen = f'"{version if version.isascii() and version.isdecimal() else 0}"'
    tools, caller = tools_and_caller(request.scope)
    try:
        if verb == "delete":
            await schedules.delete(tools, caller, schedule_id, seen, reason)
        elif verb == "reset":
            await schedules.reset(tools, caller, schedule_id, seen, reason)
        else:
            await schedules.roll_back(tools, caller, schedule_id, seen, number or 0, reason)
    except (EditedMeanwhile, InvalidInput) as error:
        return await _asked(request, schedule_id, verb, number, reason, sentence(error))
    return moved(request, f"/schedules/{schedule_id}", said=f"{DONE[verb]}.")


def _back(schedule_id: str, given: Any) -> str:
    return "/schedules" if given.get("from") == "list" else f"/schedules/{schedule_id}"
