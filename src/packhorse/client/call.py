"""Requests and streams of events as values that both clients send, and when a request is sent again."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx2
import msgspec
import uuid_utils

from packhorse.client.files import Form
from packhorse.client.server import decode_answer, error_from
from packhorse.define.options import check_names
from packhorse.errors import InvalidInput, PackhorseError, StoreUnavailable, TooMany, UnknownOutcome, Unreachable

Json = dict[str, Any]
T = TypeVar("T")

BASE = "/api/v1"
CONNECT = 5.0
READ = 60.0

PAUSES = (0.2, 0.5, 1.0)
"""Seconds before a call that may be repeated is sent again: as long as a server behind a proxy takes to be replaced."""
LOST = (Unreachable, UnknownOutcome)  # the outcome of the request is unknown
MOST_ITEMS = 1000
"""Jobs in one request."""
MOST_BYTES = 4 * 1024 * 1024
"""Of the jobs in one request, unless one is larger: a server takes a little more by default."""
MIN_WAIT = 0.1  # Seconds. The least that a client waits when the server tells it to come again.

TERMINAL = frozenset({"completed", "failed", "cancelled"})
UNNUMBERED = frozenset({"snapshot", "progress", "log", "gap"})
SILENCE = 40.0  # seconds without a byte after which the client reconnects to a stream; the server pings every 15
TRIES = 8
RECONNECT = 0.5
"""Seconds between connections, growing each time: 14 in all before giving up, longer than a restart takes."""


def item_path(collection: str, name: str, what: str) -> str:
    """The path of one item, such as ``/jobs/{id}``. ``what`` is what the error calls an empty name: "job id"."""
    if not name.strip():
        raise InvalidInput(f"The {what} is empty.", field=what.replace(" ", "_"))
    return f"{collection}/{quote(name, safe='')}"


RENAMED = {"user": "user_id", "schedule": "schedule_id"}  # filters that have another name in the API


def filter_query(filter: Mapping[str, Any], known: type[Any]) -> Json:
    """The filters by their names in the API. Raises TypeError for one that ``known``, a TypedDict, does not have."""
    check_names(filter, known, "This call")
    return {RENAMED.get(name, name): value for name, value in filter.items() if value is not None}


def items(answer: Json) -> Any:
    return answer["items"]


def _whole(answer: Any) -> Any:
    return answer


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how to read its answer."""

    method: str
    path: str
    read: Callable[[Any], T] = _whole
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    form: Form | None = None
    patience: float = READ
    """Seconds for the answer."""
    pauses: tuple[float, ...] = ()
    """Seconds before each repeat if the answer is lost; empty if it must not be repeated."""
    to: Path | None = None
    """Where to save the answer, if it is a file."""
    is_bulk: bool = False
    """Whether it changes many jobs. The server does that in pages, each with an answer of its own."""

    batch: Batch | None = None
    """The jobs that it submits some of."""

    @property
    def is_repeatable(self) -> bool:
        """Whether sending it twice has the same effect as once. A submit is repeatable through its idempotency key."""
        return self.method in ("GET", "DELETE") or bool(self.pauses)

    def request(self) -> dict[str, Any]:
        """Arguments for httpx, without the body of a form: the two clients read it differently."""
        headers = dict(self.headers)
        content = None
        if self.form is not None:
            headers |= self.form.headers()
        elif self.json is not None:
            headers["Content-Type"] = "application/json"
            content = msgspec.json.encode(self.json)
        return {
            "method": self.method,
            "url": BASE + self.path,
            "params": {name: value for name, value in self.query.items() if value is not None},
            "headers": headers,
            "content": content,
            "timeout": httpx2.Timeout(READ, connect=CONNECT, read=self.patience),
        }

    def result(self, response: httpx2.Response) -> T:
        return self.read(decode_answer(response))

    def next_page(self, so_far: Any) -> Call[Any] | None:
        """The call for the rest of a bulk change or of a batch; None if it is complete."""
        if self.batch is not None:
            return self.batch.call()
        if not self.is_bulk or so_far["next"] is None:
            return None
        read: Any = partial(_add_page, so_far)
        return replace(self, json={**self.json, "cursor": so_far["next"]}, read=read)

    def give_up(self, error: PackhorseError) -> T:
        """What is known of a batch without this call. Raises the error if that is nothing."""
        if self.batch is None:
            raise error
        found: Any = self.batch.fail(error)
        return found  # type: ignore[no-any-return]


class Batch:
    """Jobs that are submitted together: what is to be sent next, and the outcomes of what was sent."""

    def __init__(self, items: Iterable[Mapping[str, object]], query: Mapping[str, Any]) -> None:
        """Each without an idempotency key gets one, so that it can be sent again."""
        self._items = [msgspec.json.encode({"idempotency_key": str(uuid_utils.uuid7()), **each}) for each in items]
        self._query = query
        self._left = deque(range(len(self._items)))
        self._sent: list[int] = []
        self.outcomes: list[Json | PackhorseError | None] = [None] * len(self._items)

    def call(self) -> Call[list[Json | PackhorseError]] | None:
        """The request for the next of them: as many as one may have, in number and in bytes."""
        self._sent, size = [], 0
        while self._left and len(self._sent) < MOST_ITEMS:
            size += len(self._items[self._left[0]])
            if self._sent and size > MOST_BYTES:
                break
            self._sent.append(self._left.popleft())
        return self._request() if self._sent else None

    def again(self) -> PackhorseError | None:
        """Why some of those just sent should be sent once more, by the next `call`; None if none should."""
        passing = [n for n in self._sent if _is_passing(self.outcomes[n])]
        error = self.outcomes[passing[0]] if passing else None
        return error if isinstance(error, PackhorseError) else None

    def repeat(self) -> Call[list[Json | PackhorseError]]:
        self._sent = [n for n in self._sent if _is_passing(self.outcomes[n])]
        return self._request()

    def fail(self, error: PackhorseError) -> list[Json | PackhorseError]:
        """The outcome of all that have none. Raises the error if no job has one."""
        if not any(self.outcomes):
            raise error
        self._left.clear()
        self.outcomes = [error if each is None else each for each in self.outcomes]
        return self._result()

    def _request(self) -> Call[list[Json | PackhorseError]]:
        body = {"items": [msgspec.Raw(self._items[n]) for n in self._sent]}
        return Call("POST", "/jobs/batch", self._read, query=self._query, json=body, pauses=PAUSES, batch=self)

    def _read(self, answer: Json) -> list[Json | PackhorseError]:
        for n, each in zip(self._sent, answer["items"], strict=True):
            self.outcomes[n] = each["job"] or _error_of(each["problem"])
        return self._result()

    def _result(self) -> list[Json | PackhorseError]:
        return [each for each in self.outcomes if each is not None]


def _error_of(problem: Json) -> PackhorseError:
    error = error_from(problem)
    if isinstance(seconds := problem.get("retry_after"), int | float):
        error.retry_after = float(seconds)
    return error


def _is_passing(outcome: Json | PackhorseError | None) -> bool:
    """Whether the same job may be accepted in a while."""
    is_busy = isinstance(outcome, TooMany | StoreUnavailable) and outcome.retry_after is not None
    return is_busy or isinstance(outcome, LOST)


def _add_page(so_far: Json, answer: Json) -> Json:
    """The sum of the answers to a bulk change."""
    left: Json = dict(Counter(so_far["left"]) + Counter(answer["left"]))
    total = {"count": so_far["count"] + answer["count"], "left": left, "named": so_far["named"] + answer["named"]}
    return {**answer, **total}


Pages = Callable[[str | None], Call[Json]]  # the call for the page at a cursor


class RetryBudget:
    """Whether one call is sent again after an error, and when: ``limit`` is how many seconds it may wait in all."""

    def __init__(self, call: Call[Any], limit: float, on_wait: Callable[[float, PackhorseError], None] | None) -> None:
        self._until = time.monotonic() + limit
        self._on_wait = on_wait
        self._is_repeatable = call.is_repeatable
        self._pauses = iter(call.pauses)

    def next_try(self, call: Call[Any]) -> tuple[Call[Any], float] | None:
        """What of a batch is sent again, and in how many seconds; None if nothing is."""
        error = None if call.batch is None else call.batch.again()
        if error is None or call.batch is None:
            return None
        try:
            return call.batch.repeat(), self.pause(error)
        except PackhorseError:
            return None

    def pause(self, error: PackhorseError) -> float:
        """Seconds until the next try. Raises the error if that is too late, or if a repeat may have a second effect."""
        if isinstance(error, LOST):
            pause = next(self._pauses, None)
            if pause is None:
                raise error
            return pause
        if not isinstance(error, TooMany | StoreUnavailable) or not self._is_repeatable or error.retry_after is None:
            raise error
        seconds = max(error.retry_after, MIN_WAIT)
        if time.monotonic() + seconds > self._until:
            raise error
        if self._on_wait is not None:
            self._on_wait(seconds, error)
        return seconds


class Follow:
    """Follows a job's events across lost connections: what to request next, and when to give up. Sends nothing itself.

    The client waits for `pause`, connects with `request`, and passes each message to `read` while `goes_on`.
    """

    def __init__(self, path: str, after: int = 0, *, timeout: float | None = None, log: bool = True) -> None:
        self._url = BASE + path
        self._after = after
        self._until = None if timeout is None else time.monotonic() + timeout
        self._query = {"log": log, "log_after": 0}
        self._last = 0
        """Number of the newest event in the snapshot. An end before it was followed by a retry."""
        self._is_over = False
        self._was_there = False
        self._failures = 0

    @property
    def goes_on(self) -> bool:
        return not self._is_over and self._left() > 0

    def pause(self) -> float:
        """Seconds before the next connection. It counts as a failure until a message arrives: a server that shuts
        down may end it without an error."""
        pause = max(0.0, min(RECONNECT * self._failures, self._left()))
        self._failures += 1
        return pause

    def request(self) -> dict[str, Any]:
        return {
            "method": "GET",
            "url": self._url,
            "headers": {"Accept": "text/event-stream", "Last-Event-ID": str(self._after)},
            "params": self._query,
            "timeout": httpx2.Timeout(CONNECT, read=min(SILENCE, max(0.05, self._left()))),
        }

    def connected(self) -> None:
        self._was_there = True

    def connection_lost(self, error: Unreachable) -> None:
        """Raises the error if no connection ever succeeded, or after too many failures in a row."""
        if self._left() > 0 and (not self._was_there or self._failures >= TRIES):
            raise error

    def read(self, message: httpx2.ServerSentEvent) -> Json:
        self._failures = 1
        data = msgspec.json.decode(message.data) if message.data else {}
        if message.event in UNNUMBERED:
            if message.event == "snapshot":
                self._last = data["last_event"]
                self._is_over = data["status"] in TERMINAL and self._after >= self._last
            elif message.event == "log":
                self._query["log_after"] = data["n"]
            return {"n": None, "type": message.event, "data": data}
        self._after = int(message.id)
        self._is_over = message.event in TERMINAL and self._after >= self._last
        return {"n": self._after, "type": message.event, "data": data}

    def _left(self) -> float:
        return SILENCE if self._until is None else self._until - time.monotonic()
