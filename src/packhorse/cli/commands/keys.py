"""`packhorse keys`: through the server for who has a key, straight at the store for who has none yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, TypeVar

from cyclopts import App, Parameter

from packhorse.auth import keys
from packhorse.cli import output
from packhorse.cli.options import Places, Remote, Whole, settings_from
from packhorse.client import Json
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

T = TypeVar("T")
OPERATOR = "cli"
"""Who is said to have done it: whoever can open the store."""

COLUMNS = ("key", "tenant", "scopes", "name", "user", "created", "ends")

app = App("keys", help="Make, list, show, rotate and revoke keys.")

Scopes = Annotated[Sequence[str], Parameter(name="--scope", negative=())]


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

    Parameters
    ----------
    scopes
        What it may do: submit, read, operate, admin. May be repeated; submit and read unless given.
    tenant
        Whose jobs it is about; `default` unless given. A server makes keys of your own tenant only.
    name
        What people call it.
    user
        The only user it may act for.
    expires
        After how long it ends, as 90d.
    """
    settings = settings_from(places).settings
    if settings.key:
        _refuse_tenant(tenant)
        with remote.client() as client:
            _print_key(client.create_key(scopes, name=name, user_id=user, expires_in=expires), remote)
        return

    async def straight(store: Store) -> Json:
        lasting = None if expires is None else _duration("expires", expires)
        key, text = await keys.create(
            store, tenant or "default", scopes, by=OPERATOR, name=name, user=user, lasting=lasting
        )
        await _tell(store, settings, "key.created", key)
        return {**key_to_json(key), "key": text}

    _print_key(_with_store(settings, straight), remote)


@app.command(name="list")
def list_keys(*, tenant: str | None = None, places: Places = Places(), remote: Remote = Remote()) -> None:
    """List keys, newest first.

    Parameters
    ----------
    tenant
        Only this tenant's. A server shows those of your own.
    """
    settings = settings_from(places).settings
    if settings.key:
        _refuse_tenant(tenant)
        with remote.client() as client:
            found = client.keys()
    else:

        async def straight(store: Store) -> list[Json]:
            return [{**key_to_json(key)} for key in await key_records.list_newest(store, tenant, limit=200)]

        found = _with_store(settings, straight)
    if remote.json:
        output.document({"items": found, "next": None})
        return
    output.table(COLUMNS, map(_row, found))


@app.command
def show(key: str, /, *, places: Places = Places(), remote: Remote = Remote()) -> None:
    """Show whose key it is, what it may do and when it ends.

    Parameters
    ----------
    key
        Its id.
    """
    settings = settings_from(places).settings
    if settings.key:
        with remote.client() as client:
            found = client.key(_key_id(key))
    else:

        async def straight(store: Store) -> Json:
            return {**key_to_json(await keys.find(store, _key_id(key)))}

        found = _with_store(settings, straight)
    if remote.json:
        output.document(found)
    else:
        output.facts(dict(zip(COLUMNS, _row(found), strict=True)))


@app.command
def rotate(key: str, /, *, overlap: str = "0s", places: Places = Places(), remote: Remote = Remote()) -> None:
    """Make a key with the same rights, and let the old one end.

    Parameters
    ----------
    key
        The id of the old one.
    overlap
        How long the old one is good besides the new one, as 1h.
    """
    settings = settings_from(places).settings
    if settings.key:
        with remote.client() as client:
            _print_key(client.rotate_key(_key_id(key), overlap=overlap), remote)
        return

    async def straight(store: Store) -> Json:
        old = await keys.find(store, _key_id(key))
        new, text = await keys.rotate(store, old, by=OPERATOR, overlap=_duration("overlap", overlap))
        await _tell(store, settings, "key.rotated", new, replaces=old.id)
        return {**key_to_json(new), "key": text}

    _print_key(_with_store(settings, straight), remote)


@app.command
def revoke(key: str, /, *, places: Places = Places(), remote: Remote = Remote()) -> None:
    """End a key now. What is open with it is cut within a second.

    Parameters
    ----------
    key
        Its id.
    """
    settings = settings_from(places).settings
    if settings.key:
        with remote.client() as client:
            ended = client.revoke_key(_key_id(key))
    else:

        async def straight(store: Store) -> Json:
            found = await keys.revoke(store, (await keys.find(store, _key_id(key))).id, by=OPERATOR)
            await _tell(store, settings, "key.revoked", found)
            return {**key_to_json(found)}

        ended = _with_store(settings, straight)
    if remote.json:
        output.document(ended)
    else:
        output.message(f"Key {ended['key_id']} has ended.")


@app.command
def limits(key: str, /, *, remote: Remote = Remote()) -> None:
    """Show what a key may still ask for and download.

    Parameters
    ----------
    key
        Its id.
    """
    with remote.client() as client:
        found = client.key_limits(_key_id(key))
    if remote.json:
        output.document({"items": found, "next": None})
        return
    output.table(("name", "unit", "limit", "window", "left"), map(_limit, found))


def audit(*, limit: Whole = 50, places: Places = Places(), remote: Remote = Remote()) -> None:
    """Show who did what with which key, newest first: with a key, your tenant's; straight at the store, everybody's.

    Parameters
    ----------
    limit
        How many lines at most.
    """
    settings = settings_from(places).settings
    if settings.key:
        with remote.client() as client:
            found = client.audit(limit=limit)["items"]
    else:

        async def straight(store: Store) -> list[Json]:
            return [{**audit_entry_to_json(entry)} for entry in await audit_records.tail(store, limit=limit)]

        found = _with_store(settings, straight)
    if remote.json:
        output.document({"items": found, "next": None})
        return
    columns = ("at", "event", "times", "tenant", "key", "address", "job", "details")
    output.table(columns, map(_line, found))


def _with_store(settings: Settings, act: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        store = await open_store(settings.store, settings.prefix)
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def _tell(store: Store, settings: Settings, event: str, key: Key, **details: str) -> None:
    entry = Entry(at=store.now(), event=event, tenant=key.tenant, actor=OPERATOR, details={"key_id": key.id, **details})
    await audit_records.append(store, [entry], keep=settings.audit_keep)


def _refuse_tenant(tenant: str | None) -> None:
    if tenant is not None:
        raise InvalidInput(
            "The server makes and shows keys of the tenant of PACKHORSE_KEY only; unset it to work at the store.",
            field="tenant",
        )


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
    return limit["name"], "bytes" if is_bytes else limit["unit"], say(limit["limit"]), window, say(limit["left"])


def _line(entry: Json) -> Sequence[object]:
    details = ", ".join(f"{name}={value}" for name, value in entry["details"].items())
    facts = ("at", "event", "count", "tenant_id", "key_id", "address", "job_id")
    return (*(entry[name] for name in facts), details)


def _key_id(text: str) -> str:
    """The id, also where somebody gives the whole key: it must not be printed back."""
    presented = keys.read(text)
    return text if presented is None else presented.id


def _row(key: Json) -> Sequence[object]:
    return (
        key["key_id"],
        key["tenant_id"],
        ",".join(key["scopes"]),
        key["name"],
        key["user_id"] or "",
        key["created_at"],
        key["ends_at"] or "",
    )
