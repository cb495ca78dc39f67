"""``/jobs/{id}/share``: links for the person who waits, made, listed and revoked."""

from __future__ import annotations

from datetime import UTC, datetime

from litestar import Response, get, post
from litestar.params import FromPath

from packhorse.errors import InvalidInput
from packhorse.http.services import tools_and_caller
from packhorse.jobs import keys
from packhorse.web.forms import form
from packhorse.web.render import Page, moved, rendered, sentence
from packhorse.web.widgets import formatting

LASTING = {"1h": "1 hour", "1d": "1 day", "7d": "1 week", "30d": "30 days"}
USUAL = "1d"


@get("/jobs/{job_id:str}/share", scope="submit", include_in_schema=False)
async def share(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    return await _shown(request, job_id)


@post("/jobs/{job_id:str}/share", scope="submit", status_code=200, include_in_schema=False)
async def make(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    """Answered with the link, and not by another page: it is told this once."""
    given = await form(request)
    lasting = str(given.get("expires_in") or USUAL)
    try:
        made = await keys.create_token(*tools_and_caller(request.scope), job_id, lasting)
    except InvalidInput as error:
        return await _shown(request, job_id, lasting=lasting, mistake=sentence(error), status=422)
    return await _shown(request, job_id, made=made)


@post("/jobs/{job_id:str}/share/{key_id:str}/revoke", scope="submit", status_code=200, include_in_schema=False)
async def revoke(request: Page, job_id: FromPath[str], key_id: FromPath[str]) -> Response[bytes]:
    await keys.revoke_token(*tools_and_caller(request.scope), job_id, key_id)
    return moved(request, f"/jobs/{job_id}/share", said="The link does not work any more.")


async def _shown(
    request: Page,
    job_id: str,
    *,
    made: object = None,
    lasting: str = USUAL,
    mistake: str = "",
    status: int = 200,
) -> Response[bytes]:
    tokens, now = await keys.list_tokens(*tools_and_caller(request.scope), job_id), datetime.now(UTC)
    return rendered(
        request,
        "share.html",
        status=status,
        job_id=job_id,
        made=made,
        tokens=[each for each in tokens if (formatting.moment(each["ends_at"]) or now) > now],
        choices=LASTING,
        lasting=lasting,
        mistake=mistake,
    )


ROUTES = [share, make, revoke]
