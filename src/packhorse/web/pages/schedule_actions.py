"""What a person does with a schedule besides editing it: pause, resume, run, roll back, reset, delete. Each a form."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import FromPath, QueryParameter

from packhorse.web.api_calls import Api, Page, Problem
from packhorse.web.forms import form
from packhorse.web.render import moved, rendered
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
    await Api(request).post(f"/schedules/{schedule_id}/run")
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
    await Api(request).post(f"/schedules/{schedule_id}/{verb}", {"reason": str(given.get("reason", ""))})
    return moved(request, _back(schedule_id, given), said=f"{SWITCHED[verb]}: {schedule_id}.")


async def _asked(
    request: Page, schedule_id: str, verb: str, to: int | None = None, reason: str = "", mistake: str = ""
) -> Response[bytes]:
    """What it would change, before it is done."""
    api = Api(request)
    found = await api.get(f"/schedules/{schedule_id}")
    word, meaning = ASKED[verb]
    return rendered(
        request,
        "schedule_confirm.html",
        status=422 if mistake else 200,
        schedule=found,
        verb=verb,
        word=word,
        meaning=meaning.format(to=to),
        changes=differences(await _changes(api, found, verb, to)),
        to=to,
        reason=reason,
        mistake=mistake,
    )


async def _changes(api: Api, found: Any, verb: str, to: int | None) -> list[Any]:
    if verb == "rollback":
        asked = await api.get(f"/schedules/{found['schedule_id']}/diff", old=found["version"], new=to)
        return list(asked["items"])
    drift = found["drift"] or () if verb == "reset" else ()
    return [{"field": each["field"], "old": each["new"], "new": each["old"]} for each in drift]  # towards the code


async def _done(request: Page, schedule_id: str, verb: str) -> Response[bytes]:
    """On the version that was shown: whoever was faster is not overruled."""
    given = await form(request)
    reason, to = str(given.get("reason", "")), str(given.get("to", ""))
    path, number = f"/schedules/{schedule_id}", int(to) if to.isascii() and to.isdecimal() else None
    version = str(given.get("version", ""))
    seen = {"If-Match": f'"{version if version.isascii() and version.isdecimal() else 0}"'}
    try:
        if verb == "delete":
            await Api(request).ask("DELETE", path, body={"reason": reason}, headers=seen)
        else:
            body = {"reason": reason} if verb == "reset" else {"reason": reason, "version": number or 0}
            await Api(request).ask("POST", f"{path}/{verb}", body=body, headers=seen)
    except Problem as problem:
        if problem.status not in (412, 422):
            raise
        mistake = "; ".join(problem.mistakes.values()) or problem.told.get("detail", "")
        return await _asked(request, schedule_id, verb, number, reason, mistake)
    return moved(request, path, said=f"{DONE[verb]}.")


def _back(schedule_id: str, given: Any) -> str:
    return "/schedules" if given.get("from") == "list" else f"/schedules/{schedule_id}"
