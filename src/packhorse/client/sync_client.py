"""The client for programs without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx2

from packhorse.client import download
from packhorse.client.call import LOST, WAIT, Call, Fetch, Json, Pages, RetryBudget, Server, copy_signature
from packhorse.client.calls import bulk, jobs, operations
from packhorse.client.calls import failures as failing
from packhorse.client.calls import schedules as scheduling
from packhorse.client.follow import Follow
from packhorse.client.problems import decode_answer, error_of
from packhorse.errors import PackhorseError, StoreUnavailable, TooMany, Unreachable

P = ParamSpec("P")
T = TypeVar("T")


def _call(describe: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    def ask(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._ask(describe(*args, **kwargs))

    return copy_signature(ask, describe)


def _download_call(describe: Callable[P, Fetch[T]]) -> Callable[Concatenate[Client, P], T]:
    def fetch(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._fetch(describe(*args, **kwargs))

    return copy_signature(fetch, describe)


def _stream_call(describe: Callable[P, Follow]) -> Callable[Concatenate[Client, P], Iterator[Json]]:
    def follow(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Json]:
        return self._follow(describe(*args, **kwargs))

    return copy_signature(follow, describe, "Iterator[Json]")


def _pages_call(describe: Callable[P, Pages]) -> Callable[Concatenate[Client, P], Iterator[Json]]:
    def iterate(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Json]:
        return self._iterate(describe(*args, **kwargs))

    return copy_signature(iterate, describe, "Iterator[Json]")


def _bulk_call(describe: Callable[P, Pages]) -> Callable[Concatenate[Client, P], Json]:
    def change(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Json:
        return self._change(describe(*args, **kwargs))

    return copy_signature(change, describe, "Json")


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
        self._server = Server(url, key)
        self.url = self._server.url
        self._wait, self._on_wait = wait, on_wait
        with self._server.translate_errors():
            self._http = httpx2.Client(**self._server.options())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    pipelines = _call(jobs.pipelines)
    submit = _call(jobs.submit)
    get = _call(jobs.get)
    explain = _call(jobs.explain)
    estimate = _call(jobs.estimate)
    history = _call(jobs.history)
    metrics = _call(jobs.metrics)
    list = _call(jobs.page)
    iterate = _pages_call(jobs.every)
    events = _stream_call(jobs.events)
    log = _call(jobs.log)

    def wait(self, job_id: str, timeout: float | None = None) -> Json:
        """The job when it has ended, or as it is after ``timeout`` seconds: look at the status of what you get."""
        with closing(self._follow(jobs.end(job_id, timeout))) as events:
            for _ in events:
                pass
        return self.get(job_id)

    cancel = _call(jobs.cancel)
    retry = _call(jobs.retry)
    delete = _call(jobs.delete)
    count = _call(bulk.count)
    cancel_jobs = _bulk_call(bulk.cancel_jobs)
    retry_jobs = _bulk_call(bulk.retry_jobs)
    delete_jobs = _bulk_call(bulk.delete_jobs)
    promote = _call(jobs.promote)
    destinations = _call(jobs.destinations)
    me = _call(jobs.me)
    tokens = _call(jobs.tokens)
    token = _call(jobs.token)
    revoke = _call(jobs.revoke)
    artifacts = _call(jobs.artifacts)
    result = _download_call(jobs.result)
    artifact = _download_call(jobs.artifact)

    queues = _call(operations.queues)
    pause = _call(operations.pause)
    resume = _call(operations.resume)
    workers = _call(operations.workers)
    stats = _call(operations.stats)
    health = _call(operations.health)
    keys = _call(operations.keys)
    key = _call(operations.key)
    create_key = _call(operations.create_key)
    rotate_key = _call(operations.rotate_key)
    revoke_key = _call(operations.revoke_key)
    key_limits = _call(operations.key_limits)
    audit = _call(operations.audit)
    webhooks = _call(operations.webhooks)
    add_webhook = _call(operations.add_webhook)
    remove_webhook = _call(operations.remove_webhook)
    test_webhook = _call(operations.test_webhook)
    deliveries = _call(operations.deliveries)

    schedules = _pages_call(scheduling.every)
    schedule = _call(scheduling.get)
    put_schedule = _call(scheduling.put)
    delete_schedule = _call(scheduling.delete)
    pause_schedule = _call(scheduling.pause)
    resume_schedule = _call(scheduling.resume)
    reset_schedule = _call(scheduling.reset)
    rollback_schedule = _call(scheduling.rollback)
    run_schedule = _call(scheduling.run)
    schedule_runs = _call(scheduling.runs)
    schedule_versions = _call(scheduling.versions)
    schedule_version = _call(scheduling.version)
    diff_schedule = _call(scheduling.diff)
    preview_schedule = _call(scheduling.preview)
    failures = _call(failing.failures)
    failure = _call(failing.failure)
    failure_groups = _pages_call(failing.failure_groups)
    failure_group = _call(failing.failure_group)
    retry_failures = _call(failing.retry_failures)
    dismiss_failures = _call(failing.dismiss_failures)
    failure_orders = _call(failing.failure_orders)
    failure_order = _call(failing.failure_order)

    def _ask(self, call: Call[T]) -> T:
        budget = RetryBudget(self._wait, self._on_wait, is_repeatable=call.is_repeatable)
        for pause in call.pauses:
            try:
                return self._with_retries(lambda: self._once(call), budget)
            except LOST:
                time.sleep(pause)
        return self._with_retries(lambda: self._once(call), budget)

    def _with_retries(self, ask: Callable[[], T], budget: RetryBudget) -> T:
        while True:
            try:
                return ask()
            except (TooMany, StoreUnavailable) as error:
                time.sleep(budget.wait(error))

    def _once(self, call: Call[T]) -> T:
        request = call.request()
        if call.form is not None:
            request["content"] = call.form.chunks()
        with self._server.translate_errors():
            response = self._http.request(**request)
        return call.result(response)

    def _iterate(self, pages: Pages) -> Iterator[Json]:
        cursor = None
        while True:
            page = self._ask(pages(cursor))
            yield from page["items"]
            if (cursor := page["next"]) is None:
                return

    def _change(self, pages: Pages) -> Json:
        so_far = bulk.add_page(None, self._ask(pages(None)))
        while so_far["next"] is not None:
            so_far = bulk.add_page(so_far, self._ask(pages(so_far["next"])))
        return so_far

    def _fetch(self, fetch: Fetch[T]) -> T:
        budget = RetryBudget(self._wait, self._on_wait, is_repeatable=True)
        return self._with_retries(lambda: self._fetch_once(fetch), budget)

    def _fetch_once(self, fetch: Fetch[T]) -> T:
        with self._server.translate_errors(), self._http.stream("GET", fetch.url) as response:
            if not response.is_success:
                response.read()
                raise error_of(response)
            if not download.is_file(response):
                response.read()
                return fetch.value(decode_answer(response))
            return fetch.value(_save(response, fetch.to))

    def _follow(self, follow: Follow) -> Generator[Json]:
        while follow.goes_on:
            time.sleep(follow.pause())
            try:
                yield from self._connection(follow)
            except Unreachable as error:
                follow.connection_lost(error)

    def _connection(self, follow: Follow) -> Generator[Json]:
        with self._server.translate_errors(), self._http.stream(**follow.request()) as response:
            if not response.is_success:
                response.read()
                raise error_of(response)
            follow.connected()
            for message in httpx2.EventSource(response, max_event_size=None):
                yield follow.read(message)
                if not follow.goes_on:
                    return


def _save(response: httpx2.Response, to: Path) -> Path:
    with download.IncomingFile(response, to) as file:
        for piece in response.iter_bytes(download.CHUNK):
            file.add(piece)
        return file.finish()
