"""`packhorse keys`, `tokens`, `sessions` and `audit`.

Keys and audit go through the server for who has a key, and straight to the store for who has none yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Annotated

from cyclopts import App, Group, Parameter

from packhorse.auth import keys
from packhorse.cli import output
from packhorse.cli.options import JobId, Places, Remote, Whole, resolve_job, settings_from
from packhorse.client import Client, Json
from packhorse.define.options import seconds
from packhorse.errors import InvalidInput
from packhorse.factory import open_store
from packhorse.schemas.keys import audit_entry_to_json, key_to_json
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.collections import audit as audit_records
from packhorse.store.collections import keys as key_records
from packhorse.store.collections.audit import Entry
from packhorse.store.collections.keys import Key
from packhorse.web.widgets import formatting

OPERATOR = "cli"  # the actor in the audit log: a user with access to the store

COLUMNS = ("key", "tenant", "scopes", "name", "user", "created", "ends")

app = App("keys", help="Make, list, show, rotate and revoke keys.")

tokens = App("tokens", help="Make, list and revoke tokens of one job.")

sessions = App("sessions", group_commands=Group("Commands"), result_action="return_value")

Scopes = Annotated[Sequence[str], Parameter(name="--scope", negative=())]
KeyId = Annotated[str, Parameter(help="Its id.")]
OfJob = Annotated[
    JobId, Parameter(help="The id of the job, or the beginning of it; or the end, of one of the newest 200.")
]


@app.command
def create(
    *,
    scopes: Scopes = ("submit", "read"),
    tenant: str | None = None,
    name: str = "",
    user: str | None = None,
    expires: str | None = None,
    places: Places = Places(),
    remote: Remote = Remote(),
) -> None:
    """Make a key. It is printed once.

    With a key of scope admin (PACKHORSE_KEY) the server is asked; without one the store is opened, which is how the
    first key of a tenant is made.

    Args:
        scopes: What it may do: submit, read, operate, admin. May be repeated; submit and read unless given.
        tenant: Whose jobs it is about; `default` unless given. A server makes keys of your own tenant only.
        name: What people call it.
        user: The only user it may act for.
        expires: After how long it ends, as 90d.
    """
    with _client(remote, places, tenant) as client:
        _print_key(client.create_key(scopes, name=name, user_id=user, expires_in=expires), remote)


@app.default
@app.command(name="list")
def list_keys(*, tenant: str | None = None, places: Places = Places(), remote: Remote = Remote()) -> None:
    """List keys, newest first.

    Args:
        tenant: Only this tenant's. A server shows those of your own.
    """
    with _client(remote, places, tenant) as client:
        remote.print_list(client.keys(), COLUMNS, _row)


@app.command
def show(key: KeyId, /, *, places: Places = Places(), remote: Remote = Remote()) -> None:
    """Show whose key it is, what it may do and when it ends."""
    with _client(remote, places) as client:
        found = client.key(_key_id(key))
    remote.print_facts(found, dict(zip(COLUMNS, _row(found), strict=True)))


@app.command
def rotate(key: str, /, *, overlap: str = "0s", places: Places = Places(), remote: Remote = Remote()) -> None:
    """Make a key with the same rights, and let the old one end.

    Args:
        key: The id of the old one.
        overlap: How long the old one is good besides the new one, as 1h.
    """
    with _client(remote, places) as client:
        _print_key(client.rotate_key(_key_id(key), overlap=overlap), remote)


@app.command
def revoke(key: KeyId, /, *, places: Places = Places(), remote: Remote = Remote()) -> None:
    """End a key now. What is open with it is cut within a second."""
    with _client(remote, places) as client:
        ended = client.revoke_key(_key_id(key))
    remote.print_one(ended, f"Key {ended['key_id']} has ended.", to=output.message)


@app.command
def limits(key: KeyId, /, *, remote: Remote = Remote()) -> None:
    """Show what a key may still ask for and download."""
    with remote.client() as client:
        found = client.key_limits(_key_id(key))
    remote.print_list(found, ("name", "unit", "limit", "window", "left"), _limit)


@tokens.command(name="create")
def create_token(job: JobId, /, *, expires: str | None = None, remote: Remote = Remote()) -> None:
    """Make a token that can read and cancel this job, and the address of a page with it. Both are printed once.

    Args:
        expires: After how long it ends, as 1d.
    """
    with remote.client() as client:
        job = resolve_job(client, job)
        made = client.token(job, expires_in=expires)
        made = {**made, "url": f"{client.url}/p/{made['key']}"}
    if remote.json:
        output.document(made)
        return
    output.message(f"Token {made['key_id']} is for job {job} only, until {made['ends_at']}. Keep it safe:")
    output.plain(made["key"])
    output.message(f"Page for the end user: {made['url']}")


@tokens.command(name="list")
def list_tokens(job: JobId, /, *, remote: Remote = Remote()) -> None:
    """List the tokens that were given out for a job."""
    with remote.client() as client:
        found = client.tokens(resolve_job(client, job))
    empty = f"There are no tokens. Make one with: packhorse tokens create {job}"
    remote.print_list(found, ("token", "created", "ends"), itemgetter("key_id", "created_at", "ends_at"), empty)


@tokens.command(name="revoke")
def revoke_token(job: OfJob, token: str, /, *, remote: Remote = Remote()) -> None:
    """End a token now. What is open with it is cut within a second.

    Args:
        token: The id of the token.
    """
    with remote.client() as client:
        ended = client.revoke(resolve_job(client, job), token)
    remote.print_one(ended, f"Token {ended['key_id']} has ended.", to=output.message)


@sessions.default
@sessions.command(name="list")
def list_sessions(*, remote: Remote = Remote()) -> None:
    """List the browsers that are logged in with your key; with the scope admin, with any key of your tenant."""
    with remote.client() as client:
        found = client.sessions()
    columns = ("session", "key", "address", "started", "used", "ends")
    row = itemgetter("session_id", "key_id", "address", "created_at", "seen_at", "ends_at")
    remote.print_list(found, columns, row, "No browser is logged in.")


@sessions.command(name="end")
def end_session(session: str, /, *, remote: Remote = Remote()) -> None:
    """Log a browser out. What is streamed to it is cut within a second.

    Parameters
    ----------
    session
        The id of the session.
    """
    with remote.client() as client:
        client.end_session(session)
    remote.print_one({"session_id": session}, f"Session {session} has ended.", to=output.message)


def audit(*, limit: Whole = 50, places: Places = Places(), remote: Remote = Remote()) -> None:
    """Show who did what with which key, newest first: with a key, your tenant's; straight at the store, everybody's.

    Args:
        limit: How many lines at most.
    """
    with _client(remote, places) as client:
        found = client.audit(limit=limit)["items"]
    remote.print_list(found, ("at", "event", "times", "tenant", "key", "address", "job", "details"), _line)


class StoreKeys:
    """Does at the store what `Client` has the server do."""

    def __init__(self, settings: Settings, tenant: str | None, runner: asyncio.Runner, store: Store) -> None:
        self._settings = settings
        self._tenant = tenant
        self._run = runner.run
        self._store = store

    def create_key(self, scopes: Sequence[str], *, name: str, user_id: str | None, expires_in: str | None) -> Json:
        lasting = None if expires_in is None else _duration("expires", expires_in)
        tenant = self._tenant or "default"
        key, text = self._run(
            keys.create(self._store, tenant, scopes, by=OPERATOR, name=name, user=user_id, lasting=lasting)
        )
        self._audit("key.created", key)
        return {**key_to_json(key), "key": text}

    def keys(self) -> Sequence[Json]:
        found = self._run(key_records.list_newest(self._store, self._tenant, limit=200))
        return [{**key_to_json(key)} for key in found]

    def key(self, key_id: str) -> Json:
        return {**key_to_json(self._run(keys.find(self._store, key_id)))}

    def rotate_key(self, key_id: str, *, overlap: str) -> Json:
        old = self._run(keys.find(self._store, key_id))
        lasting = _duration("overlap", overlap)
        new, text = self._run(keys.rotate(self._store, old, by=OPERATOR, overlap=lasting))
        self._audit("key.rotated", new, replaces=old.id)
        return {**key_to_json(new), "key": text}

    def revoke_key(self, key_id: str) -> Json:
        found = self._run(keys.find(self._store, key_id))
        ended = self._run(keys.revoke(self._store, found.id, by=OPERATOR))
        self._audit("key.revoked", ended)
        return {**key_to_json(ended)}

    def audit(self, *, limit: int) -> Json:
        found = self._run(audit_records.tail(self._store, limit=limit))
        return {"items": [audit_entry_to_json(entry) for entry in found], "next": None}

    def _audit(self, event: str, key: Key, **details: str) -> None:
        about = {"key_id": key.id, **details}
        entry = Entry(at=self._store.now(), event=event, tenant=key.tenant, actor=OPERATOR, details=about)
        keep, age = self._settings.audit_keep, self._settings.audit_age
        self._run(audit_records.append(self._store, [entry], keep=keep, age=age))


@contextmanager
def _client(remote: Remote, places: Places, tenant: str | None = None) -> Iterator[Client | StoreKeys]:
    settings = settings_from(places).settings
    if settings.key:
        if tenant is not None:
            only = "The server makes and shows keys of the tenant of PACKHORSE_KEY only; unset it to work at the store."
            raise InvalidInput(only, field="tenant")
        with remote.client() as client:
            yield client
        return
    with asyncio.Runner() as runner:
        store = runner.run(open_store(settings.store, settings.prefix))
        try:
            yield StoreKeys(settings, tenant, runner, store)
        finally:
            runner.run(store.close())


def _duration(name: str, text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise InvalidInput(f"{error}.", field=name) from error


def _print_key(made: Json, remote: Remote) -> None:
    if remote.json:
        output.document(made)
        return
    output.message(f"Key {made['key_id']} of tenant {made['tenant_id']} may {', '.join(made['scopes'])}. Keep it safe:")
    output.plain(made["key"])


def _limit(limit: Json) -> Sequence[object]:
    is_bytes = limit["unit"] == "content-bytes"
    say = formatting.size if is_bytes else formatting.number
    window = "" if limit["window_seconds"] is None else formatting.duration(limit["window_seconds"])
    left = "per user" if limit["left"] is None else say(limit["left"])
    return limit["name"], "bytes" if is_bytes else limit["unit"], say(limit["limit"]), window, left


def _line(entry: Json) -> Sequence[object]:
    details = ", ".join(f"{name}={value}" for name, value in entry["details"].items())
    return *itemgetter("at", "event", "count", "tenant_id", "key_id", "address", "job_id")(entry), details


def _key_id(text: str) -> str:
    """The id, also where somebody gives the whole key: it must not be printed back."""
    presented = keys.read(text)
    return text if presented is None else presented.id


def _row(key: Json) -> Sequence[object]:
    owner = (key["key_id"], key["tenant_id"], ",".join(key["scopes"]), key["name"], key["user_id"] or "")
    return *owner, key["created_at"], key["ends_at"] or ""
