"""`packhorse keys`, `tokens`, `sessions` and `audit`.

With a key in PACKHORSE_KEY, keys and audit call the server. Without one, they open the store directly.
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

COLUMNS = ("key", "tenant", "scopes", "name", "client", "user", "created", "ends")

app = App("keys", help="Create, list, show, rotate and revoke keys.")

tokens = App("tokens", help="Create, list and revoke tokens. A token gives access to one job.")

sessions = App("sessions", group_commands=Group("Commands"), result_action="return_value")

Scopes = Annotated[Sequence[str], Parameter(name="--scope", negative=())]
KeyId = Annotated[str, Parameter(help="Key id.")]
OfJob = Annotated[
    JobId, Parameter(help="Job id, or its first digits, or the last 8 or more digits of one of the newest 200 jobs.")
]


@app.command
def create(
    *,
    scopes: Scopes = ("submit", "read"),
    tenant: str | None = None,
    name: str = "",
    user: str | None = None,
    client: str = "",
    expires: str | None = None,
    places: Places = Places(),
    remote: Remote = Remote(),
) -> None:
    """Create a key. It is printed only once.

    With an admin key in PACKHORSE_KEY, the server creates it. Without one, this command writes to the store directly:
    create the first key of a tenant like this.

    Args:
        scopes: Scope of the key: submit, read, operate or admin. Can be repeated. Default: submit and read.
        tenant: Tenant of the key. Default: `default`. A server only creates keys of your own tenant.
        name: Name of the key, for people.
        user: Restrict the key to this user.
        client: Name of the program that uses the key. Its jobs show it as created_by_client_id.
        expires: Lifetime of the key, such as 90d. Default: no limit.
    """
    with _client(remote, places, tenant) as server:
        made = server.create_key(scopes, name=name, user_id=user, expires_in=expires, client_name=client)
    _print_key(made, remote)


@app.default
@app.command(name="list")
def list_keys(*, tenant: str | None = None, places: Places = Places(), remote: Remote = Remote()) -> None:
    """List keys, newest first.

    Args:
        tenant: Only keys of this tenant. A server only lists keys of your own tenant.
    """
    with _client(remote, places, tenant) as client:
        remote.print_list(client.keys(), COLUMNS, _row, "No keys. Create one with: packhorse keys create --scope SCOPE")


@app.command
def show(key: KeyId, /, *, places: Places = Places(), remote: Remote = Remote()) -> None:
    """Show the tenant, user, scopes and end of a key."""
    with _client(remote, places) as client:
        found = client.key(_key_id(key))
    remote.print_facts(found, dict(zip(COLUMNS, _row(found), strict=True)))


@app.command
def rotate(key: str, /, *, overlap: str = "0s", places: Places = Places(), remote: Remote = Remote()) -> None:
    """Replace a key: create one with the same rights, and end the old one.

    Args:
        key: Id of the key to replace.
        overlap: How long the old key remains valid, such as 1h. Default: it ends at once.
    """
    with _client(remote, places) as client:
        _print_key(client.rotate_key(_key_id(key), overlap=overlap), remote)


@app.command
def revoke(key: KeyId, /, *, places: Places = Places(), remote: Remote = Remote()) -> None:
    """Revoke a key now. Its open connections are closed within a second."""
    with _client(remote, places) as client:
        ended = client.revoke_key(_key_id(key))
    remote.print_one(ended, f"Key {ended['key_id']} is revoked.", to=output.message)


@app.command
def limits(key: KeyId, /, *, remote: Remote = Remote()) -> None:
    """Show the limits of a key, and what is left of each."""
    with remote.client() as client:
        found = client.key_limits(_key_id(key))
    remote.print_list(found, ("name", "unit", "limit", "window", "left"), _limit)


@tokens.command(name="create")
def create_token(job: JobId, /, *, expires: str | None = None, remote: Remote = Remote()) -> None:
    """Create a token that can read and cancel one job, and the URL of a page for the end user. Both are printed once.

    Args:
        expires: Lifetime of the token, such as 1d.
    """
    with remote.client() as client:
        job = resolve_job(client, job)
        made = client.token(job, expires_in=expires)
        made = {**made, "url": f"{client.url}/p/{made['key']}"}
    if remote.json:
        output.document(made)
        return
    output.message(f"Created token {made['key_id']} for job {job}, until {made['ends_at']}. It is shown only once:")
    output.plain(made["key"])
    output.message(f"Page for the end user: {made['url']}")


@tokens.command(name="list")
def list_tokens(job: JobId, /, *, remote: Remote = Remote()) -> None:
    """List the tokens of a job."""
    with remote.client() as client:
        found = client.tokens(resolve_job(client, job))
    empty = f"No tokens. Create one with: packhorse tokens create {job}"
    remote.print_list(found, ("token", "created", "ends"), itemgetter("key_id", "created_at", "ends_at"), empty)


@tokens.command(name="revoke")
def revoke_token(job: OfJob, token: str, /, *, remote: Remote = Remote()) -> None:
    """Revoke a token now. Its open connections are closed within a second.

    Args:
        token: Token id.
    """
    with remote.client() as client:
        ended = client.revoke(resolve_job(client, job), token)
    remote.print_one(ended, f"Token {ended['key_id']} is revoked.", to=output.message)


@sessions.default
@sessions.command(name="list")
def list_sessions(*, remote: Remote = Remote()) -> None:
    """List browser sessions that use your key; with the scope admin, those of all keys of your tenant."""
    with remote.client() as client:
        found = client.sessions()
    columns = ("session", "key", "address", "started", "used", "ends")
    row = itemgetter("session_id", "key_id", "address", "created_at", "seen_at", "ends_at")
    remote.print_list(found, columns, row, "No browser sessions.")


@sessions.command(name="end")
def end_session(session: str, /, *, remote: Remote = Remote()) -> None:
    """Log a browser out. Its open connections are closed within a second.

    Args:
        session: Session id.
    """
    with remote.client() as client:
        client.end_session(session)
    remote.print_one({"session_id": session}, f"Session {session} is ended.", to=output.message)


def audit(*, limit: Whole = 50, places: Places = Places(), remote: Remote = Remote()) -> None:
    """Show who did what with which key, newest first. With PACKHORSE_KEY: of your tenant. Without: of all tenants.

    Args:
        limit: Maximum number of entries.
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

    def create_key(
        self, scopes: Sequence[str], *, name: str, user_id: str | None, expires_in: str | None, client_name: str = ""
    ) -> Json:
        lasting = None if expires_in is None else _duration("expires", expires_in)
        tenant = self._tenant or "default"
        key, text = self._run(
            keys.create(
                self._store,
                tenant,
                scopes,
                by=OPERATOR,
                name=name,
                user=user_id,
                client_name=client_name,
                lasting=lasting,
            )
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
            only = "The server only handles keys of your own tenant. Unset PACKHORSE_KEY to use the store directly."
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
    scopes = ", ".join(made["scopes"])
    output.message(f"Created key {made['key_id']} (tenant {made['tenant_id']}, {scopes}). It is shown only once:")
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
    owner = (key["key_id"], key["tenant_id"], ",".join(key["scopes"]), key["name"], key.get("client_name", ""))
    return *owner, key["user_id"] or "", key["created_at"], key["ends_at"] or ""
