"""Sessions: a key is shown once, and a browser then stays logged in for a while."""

from __future__ import annotations

from litestar import delete, post
from litestar.di import NamedDependency

from packhorse.auth import sessions
from packhorse.auth.caller import Caller
from packhorse.errors import Forbidden
from packhorse.http.openapi import refusing
from packhorse.http.services import Tools
from packhorse.schemas.keys import SessionDocument
from packhorse.schemas.timestamps import iso
from packhorse.store.collections import sessions as session_records


@post("/sessions", scope="read", responses=refusing())
async def log_in(tools: NamedDependency[Tools], caller: NamedDependency[Caller]) -> SessionDocument:
    """Log in a browser with the key that is shown here. The text of the session is in this answer, and never again."""
    key = await tools.keyring.get(caller.key_id) if caller.key_id else None
    if key is None or caller.session:
        raise Forbidden("Logging in takes a key, in the header Authorization.", scope="read")
    session, text = await sessions.begin(tools.store, key, tools.settings.session)
    tools.audit.tell("session.started", caller, session_id=session.id)
    return {"session_id": session.id, "session": text, "ends_at": iso(session.ends_at)}


@delete("/sessions/current", scope="read", status_code=204, responses=refusing())
async def log_out(tools: NamedDependency[Tools], caller: NamedDependency[Caller]) -> None:
    """End the session this is asked with; without one, nothing happens."""
    if caller.session:
        await session_records.end(tools.store, caller.session)
        tools.audit.tell("session.ended", caller, session_id=caller.session)


ROUTES = [log_in, log_out]
