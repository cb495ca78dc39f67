"""Records: everything a store keeps beside jobs, in one shape. Collections in `store/collections` give them meaning.

A record has a body that its writers compare before they replace it, and a note that the commit of a job replaces
without reading. It is found by its id, by the index entries it was put with, and, if it has a time, by being due.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from msgspec import Struct


class Ref(NamedTuple):
    kind: str
    id: str


class IndexEntry(NamedTuple):
    """Where a record is listed: in an index of its kind, at a place that compares as bytes of UTF-8.

    A place is not empty. It should be unique in its index, because pages continue after a place: end it with the id
    where it is not.
    """

    name: str  # `tenant/acme`: the name of the index and what all of its entries have in common
    place: str


class Record(Struct, frozen=True):
    kind: str
    id: str
    body: bytes  # JSON. Only its collection reads it.
    note: bytes = b""  # what a `NoteRecord` said since the body was put; empty if there was none
    stamp: int = 1
    """1 for a new record, and one more after every write, a `NoteRecord` and a `take` included."""
    due_at: float | None = None
    attempts: int = 0  # how often it was taken since it was put


class Put(Struct, frozen=True):
    """Write a record whole: its body, its index entries, its lane and time. A note it had is gone."""

    kind: str
    id: str
    body: bytes
    stamp: int | None = None
    """What the stored record must carry: 0 if there may be none yet, None if that does not matter."""
    index: tuple[IndexEntry, ...] = ()  # replaces the entries it had
    lane: str = ""
    due_at: float | None = None  # from then on `take` finds it in its lane; None takes it out
    attempts: int | None = 0
    """What the count of attempts becomes: back to 0, if nothing else is said. None leaves the count as it is."""
    job_id: str | None = None  # the job must exist, and takes the record along when it is erased
    needs: Ref | None = None  # another record that must exist


class Drop(Struct, frozen=True):
    """Delete a record, its note and its index entries. One that is not there is left at that."""

    kind: str
    id: str
    stamp: int | None = None  # what the stored record must carry; None if that does not matter
    leaseless: str = ""  # a worker that must hold no lease


class LogEntry(NamedTuple):
    """An entry of an append-only log. The store numbers entries: rising, and never given twice."""

    body: bytes
    topic: str = ""  # lists it under this topic as well, if it is not empty
    n: int = 0
    at: float = 0.0
    """When it happened; entries of one log come about in this order."""


def time_place(at: float, id: str = "") -> str:
    """A place that sorts by time, then by id. Without an id it lies before all of that time."""
    [bits] = struct.unpack(">Q", struct.pack(">d", at))
    return f"{bits ^ (2**64 - 1 if bits >> 63 else 1 << 63):016x} {id}"
