"""The client for programs without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx2

from packhorse.client import download
from packhorse.client.call import LOST, Call, Fetch, Json, Pages, Where
from packhorse.client.calls import bulk, jobs, operations
from packhorse.client.calls import failures as failing
from packhorse.client.calls import schedules as scheduling
from packhorse.client.follow import Follow
from packhorse.client.problems import checked, error_of
from packhorse.client.retry import WAIT, Patience
from packhorse.client.signatures import shown_as
from packhorse.errors import PackhorseError, StoreUnavailable, TooMany, Unreachable

P = ParamSpec("P")
T = TypeVar("T")


def _asking(describe: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    def ask(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._ask(describe(*args, **kwargs))

    return shown_as(ask, describe)


def _fetching(describe: Callable[P, Fetch[T]]) -> Callable[Concatenate[Client, P], T]:
    def fetch(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._fetch(describe(*args, **kwargs))

    return shown_as(fetch, describe)


def _following(describe: Callable[P, Follow]) -> Callable[Concatenate[Client, P], Iterator[Json]]:
    def follow(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Json]:
        return self._follow(describe(*args, **kwargs))

    return shown_as(follow, describe, "Iterator[Json]")


def _paging(describe: Callable[P, Pages]) -> Callable[Concatenate[Client, P], Iterator[Json]]:
    def iterate(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Json]:
        return self._iterate(describe(*args, **kwargs))

    return shown_as(iterate, describe, "Iterator[Json]")


def _changing(describe: Callable[P, Pages]) -> Callable[Concatenate[Client, P], Json]:
    def change(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Json:
        return self._change(describe(*args, **kwargs))

    return shown_as(change, describe, "Json")


class Client:
    """packhorse over HTTP.

    Talks to the server at ``url``; default: the setting ``url``, else the local ``packhorse dev``. ``key`` is an API
    key or a job's token; default: the setting ``key``. Raises the errors of `packhorse.errors`: the same the server
    raised, or `Unreachable`. Use it in a ``with``, or call `close`.

    A call that may be sent twice (what is read, deleted or submitted) waits where the server says when to come again
    (429 and 503 with ``Retry-After``): up to ``wait`` seconds in all, 0 for never. ``on_wait`` is told each time, with
    the seconds and the error.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        wait: float = WAIT,
        on_wait: Callable[[float, PackhorseError], None] | None = None,
    ) -> None:
        self._where = Where(url, key)
        self.url = self._where.url
        self._wait, self._on_wait = wait, on_wait
        with self._where.reaching():
            self._http = httpx2.Client(**self._where.options())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    pipelines = _asking(jobs.pipelines)
    submit = _asking(jobs.submit)
    get = _asking(jobs.get)
    explain = _asking(jobs.explain)
    estimate = _asking(jobs.estimate)
    history = _asking(jobs.history)
    metrics = _asking(jobs.metrics)
    list = _asking(jobs.page)
    iterate = _paging(jobs.every)
    events = _following(jobs.events)
    log = _asking(jobs.log)

    def wait(self, job_id: str, timeout: float | None = None) -> Json:
        """The job when it has ended, or as it is after ``timeout`` seconds: look at the status of what you get."""
        with closing(self._follow(jobs.end(job_id, timeout))) as events:
            for _ in events:
                pass
        return self.get(job_id)

    cancel = _asking(jobs.cancel)
    retry = _asking(jobs.retry)
    delete = _asking(jobs.delete)
    count = _asking(bulk.count)
    cancel_jobs = _changing(bulk.cancel_jobs)
    retry_jobs = _changing(bulk.retry_jobs)
    delete_jobs = _changing(bulk.delete_jobs)
    promote = _asking(jobs.promote)
    destinations = _asking(jobs.destinations)
    me = _asking(jobs.me)
    tokens = _asking(jobs.tokens)
    token = _asking(jobs.token)
    revoke = _asking(jobs.revoke)
    artifacts = _asking(jobs.artifacts)
    result = _fetching(jobs.result)
    artifact = _fetching(jobs.artifact)

    queues = _asking(operations.queues)
    pause = _asking(operations.pause)
    resume = _asking(operations.resume)
    workers = _asking(operations.workers)
    stats = _asking(operations.stats)
    health = _asking(operations.health)
    keys = _asking(operations.keys)
    key = _asking(operations.key)
    create_key = _asking(operations.create_key)
    rotate_key = _asking(operations.rotate_key)
    revoke_key = _asking(operations.revoke_key)
    key_limits = _asking(operations.key_limits)
    audit = _asking(operations.audit)
    webhooks = _asking(operations.webhooks)
    add_webhook = _asking(operations.add_webhook)
    remove_webhook = _asking(operations.remove_webhook)
    test_webhook = _asking(operations.test_webhook)
    deliveries = _asking(operations.deliveries)

    schedules = _paging(scheduling.every)
    schedule = _asking(scheduling.get)
    put_schedule = _asking(scheduling.put)
    delete_schedule = _asking(scheduling.delete)
    pause_schedule = _asking(scheduling.pause)
    resume_schedule = _asking(scheduling.resume)
    reset_schedule = _asking(scheduling.reset)
    rollback_schedule = _asking(scheduling.rollback)
    run_schedule = _asking(scheduling.run)
    schedule_runs = _asking(scheduling.runs)
    schedule_versions = _asking(scheduling.versions)
    schedule_version = _asking(scheduling.version)
    diff_schedule = _asking(scheduling.diff)
    preview_schedule = _asking(scheduling.preview)
    failures = _asking(failing.failures)
    failure = _asking(failing.failure)
    failure_groups = _paging(failing.failure_groups)
    failure_group = _asking(failing.failure_group)
    retry_failures = _asking(failing.retry_failures)
    dismiss_failures = _asking(failing.dismiss_failures)
    failure_orders = _asking(failing.failure_orders)
    failure_order = _asking(failing.failure_order)

    def _ask(self, call: Call[T]) -> T:
        patience = Patience(self._wait, self._on_wait, is_repeatable=call.is_repeatable)
        for pause in call.pauses:
            try:
                return self._in_time(lambda: self._once(call), patience)
            except LOST:
                time.sleep(pause)
        return self._in_time(lambda: self._once(call), patience)

    def _in_time(self, ask: Callable[[], T], patience: Patience) -> T:
        while True:
            try:
                return ask()
            except (TooMany, StoreUnavailable) as error:
                time.sleep(patience.wait(error))

    def _once(self, call: Call[T]) -> T:
        asked = call.asked()
        if call.form is not None:
            asked["content"] = call.form.sent()
        with self._where.reaching():
            response = self._http.request(**asked)
        return call.answered(response)

    def _iterate(self, pages: Pages) -> Iterator[Json]:
        cursor = None
        while True:
            page = self._ask(pages(cursor))
            yield from page["items"]
            if (cursor := page["next"]) is None:
                return

    def _change(self, pages: Pages) -> Json:
        so_far = bulk.added(None, self._ask(pages(None)))
        while so_far["next"] is not None:
            so_far = bulk.added(so_far, self._ask(pages(so_far["next"])))
        return so_far

    def _fetch(self, fetch: Fetch[T]) -> T:
        patience = Patience(self._wait, self._on_wait, is_repeatable=True)
        return self._in_time(lambda: self._fetched(fetch), patience)

    def _fetched(self, fetch: Fetch[T]) -> T:
        with self._where.reaching(), self._http.stream("GET", fetch.url) as response:
            if not response.is_success:
                response.read()
                raise error_of(response)
            if not download.is_file(response):
                response.read()
                return fetch.value(checked(response))
            return fetch.value(_arrived(response, fetch.to))

    def _follow(self, follow: Follow) -> Generator[Json]:
        while follow.goes_on:
            time.sleep(follow.pause())
            try:
                yield from self._connection(follow)
            except Unreachable as error:
                follow.lost(error)

    def _connection(self, follow: Follow) -> Generator[Json]:
        with self._where.reaching(), self._http.stream(**follow.asked()) as response:
            if not response.is_success:
                response.read()
                raise error_of(response)
            follow.connected()
            for message in httpx2.EventSource(response, max_event_size=None):
                yield follow.read(message)
                if not follow.goes_on:
                    return


def _arrived(response: httpx2.Response, to: Path) -> Path:
    with download.Arrival(response, to) as arrival:
        for piece in response.iter_bytes(download.CHUNK):
            arrival.add(piece)
        return arrival.kept()
