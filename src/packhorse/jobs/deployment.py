"""Which deployment the files belong to: one id, kept in the store and in the object store.

A sweep deletes files that no job in the store refers to. With the wrong store (a mistyped URL, an empty store after a
failed restore, a second deployment in the same bucket) that is every file. So the first start marks both places with
the same id, every later start compares them, and so does the janitor before it deletes anything.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress

from msgspec import Struct

from packhorse.blobs.base import Blobs
from packhorse.core import json
from packhorse.core.records import Put
from packhorse.errors import BlobExists, BlobNotFound, Conflict, CorruptRecord, NoDestination, WrongDeployment
from packhorse.log import log
from packhorse.store.base import Records, Store

KIND, ID = "deployment", "this"
MARK = "deployment"
"""Key of the object that says whose files these are."""
DESTINATION_MARK = "%%deployment"
"""The same in the destination of published files. No path of a job or tenant begins like this."""
MAX_MARK = 4096
"""Bytes of it that are read."""
PATIENCE = 3.0
"""Seconds that a start waits for the object store, once both places are marked."""
UNREADABLE = "unreadable"


class Mark(Struct, frozen=True):
    """What the object store says about its owner."""

    id: str
    claimed_at: float = 0.0
    store: str = ""
    """Address of the store, without secrets, as it was then: it tells an operator which deployment this is."""


async def get_id(store: Records) -> str | None:
    [found] = await store.fetch(KIND, [ID])
    return None if found is None else json.record(found.body, str)


async def read_mark(blobs: Blobs, key: str = MARK) -> Mark | None:
    """None if nobody has claimed the object store. An unreadable mark is somebody's, and nobody's we know."""
    try:
        body = b"".join([piece async for piece in blobs.read(key, length=MAX_MARK)])
        return json.record(body, Mark)
    except BlobNotFound:
        return None
    except CorruptRecord:
        return Mark(UNREADABLE)


async def claim(store: Store, blobs: Blobs, address: str) -> None:
    """At the start of a process: mark both as one deployment if neither is marked; else compare.

    Of two deployments that start beside one unmarked object store, one gets it: its mark is put only if there is none.
    The first start needs an object store that answers. Later ones do not wait for it: the janitor compares again. Nor
    do they mark files whose mark is lost, which may be another's: none is deleted until somebody adopts them.
    Raises WrongDeployment and, on the first start, BlobUnavailable.
    """
    if await get_id(store) is not None and not await _answers(blobs):
        log.deployment_unchecked()
        return
    mark = await read_mark(blobs)  # before the id: who marks writes the id first
    has_files = mark is None and bool(await blobs.folders("jobs", limit=1))
    if has_files:
        mark = await read_mark(blobs)  # again: another process may have marked it and stored files since
    ours = await get_id(store)
    if mark is None and has_files:
        if ours is None:
            raise WrongDeployment("The object store has the files of jobs, but no mark, and the store is new.")
        log.deployment_unmarked()
        return
    if mark is None:
        ours = ours or await _set_id(store, secrets.token_hex(8), stamp=0)
        mark = await _put_mark(blobs, Mark(ours, store.now(), address))
    compare(ours, mark)


async def check(store: Records, blobs: Blobs) -> None:
    """Before anything is deleted. Raises WrongDeployment.

    Read the store before you call this: if it lost its records since, it has lost its id as well.
    """
    mark = await read_mark(blobs)
    compare(await get_id(store), mark)


async def adopt(store: Store, blobs: Blobs, address: str) -> str:
    """Make this store the owner of the files, regardless of their owner; return the new id.

    The id is new in both places: if the owner before still runs, it finds that it is no longer the owner and deletes
    nothing. If it is interrupted here, there are two different ids, or no mark: run it again.
    """
    new = Mark(secrets.token_hex(8), store.now(), address)
    await blobs.delete([MARK])
    while await _put_mark(blobs, new) != new:  # a process of the owner before has started and marked it again
        await blobs.delete([MARK])
    await _set_id(store, new.id, stamp=None)
    return new.id


class PublishDestination:
    """Where published files go, if not to the object store of the jobs. It belongs to one deployment.

    A lifecycle rule of the bucket may delete the mark with the files: then it is put again.
    """

    def __init__(self, store: Store, blobs: Blobs, address: str) -> None:
        self._store = store
        self._address = address
        self.blobs = blobs

    async def claim(self) -> None:
        """Mark the destination if nobody has. Raises WrongDeployment if another deployment has."""
        ours = await get_id(self._store)
        mark = await read_mark(self.blobs, DESTINATION_MARK)
        if mark is None and ours is not None:
            mark = await _put_mark(self.blobs, Mark(ours, self._store.now(), self._address), DESTINATION_MARK)
        compare(ours, mark)

    async def open(self) -> Blobs:
        """Before something is written or deleted there. Raises NoDestination if another deployment has claimed it."""
        try:
            await self.claim()
        except WrongDeployment as error:
            raise NoDestination(reason=f"PACKHORSE_PUBLISH_TO is another deployment's. {error}") from error
        return self.blobs

    async def adopt(self) -> None:
        """Mark it for this store, regardless of its owner."""
        await self.blobs.delete([DESTINATION_MARK])
        await self.claim()


def compare(ours: str | None, mark: Mark | None) -> None:
    """Raises WrongDeployment. Where neither is marked there is nothing to confuse: no process has started yet."""
    if mark is not None and ours == mark.id:
        return
    if mark is not None:
        of = f"{mark.id}, of the store {mark.store}" if mark.store else mark.id
        raise WrongDeployment(ours=ours or "new", theirs=of)
    if ours is not None:
        raise WrongDeployment(f"The object store has no mark, and the store belongs to deployment {ours}.")


async def _answers(blobs: Blobs) -> bool:
    """Without waiting for the end of a long outage."""
    asking = asyncio.ensure_future(blobs.size(MARK))
    asking.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([asking], timeout=PATIENCE)
    return asking.done() and asking.exception() is None


async def _set_id(store: Records, id: str, *, stamp: int | None) -> str:
    """The id that is kept: with stamp 0, somebody else's if that came first."""
    with suppress(Conflict):
        await store.put([Put(KIND, ID, json.encode(id), stamp=stamp)])
        return id
    found = await get_id(store)
    assert found is not None
    return found


async def _put_mark(blobs: Blobs, mark: Mark, key: str = MARK) -> Mark:
    """The mark that is kept: somebody else's if that came first."""

    async def content() -> AsyncIterator[bytes]:
        yield json.encode(mark)

    try:
        await blobs.put(key, content())
    except BlobExists:
        return await read_mark(blobs, key) or mark
    return mark
