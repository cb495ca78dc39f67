"""The client for programs with an event loop: the same calls as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

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


def _asking(describe: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    async def ask(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._ask(describe(*args, **kwargs))

    return shown_as(ask, describe)


def _fetching(describe: Callable[P, Fetch[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    async def fetch(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._fetch(describe(*args, **kwargs))

    return shown_as(fetch, describe)


def _following(describe: Callable[P, Follow]) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[Json]]:
    def follow(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Json]:
        return self._follow(describe(*args, **kwargs))

    return shown_as(follow, describe, "AsyncGenerator[Json]")


def _paging(describe: Callable[P, Pages]) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[Json]]:
    def iterate(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Json]:
        return self._iterate(describe(*args, **kwargs))

    return shown_as(iterate, describe, "AsyncGenerator[Json]")


def _changing(describe: Callable[P, Pages]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Json]]:
    async def change(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Json:
        return await self._change(describe(*args, **kwargs))

    return shown_as(change, describe, "Json")


class AsyncClient:
    """packhorse over HTTP, for one event loop.

    The same as `Client`, with every call a coroutine, and `events` and `iterate` to be read with ``async for``. Use it
    in an ``async with``, or await `close`.
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
            self._http = httpx2.AsyncClient(**self._where.options())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

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

    async def wait(self, job_id: str, timeout: float | None = None) -> Json:
        """The job when it has ended, or as it is after ``timeout`` seconds: look at the status of what you get."""
        async with aclosing(self._follow(jobs.end(job_id, timeout))) as events:
            async for _ in events:
                pass
        return await self.get(job_id)

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

    async def _ask(self, call: Call[T]) -> T:
        patience = Patience(self._wait, self._on_wait, is_repeatable=call.is_repeatable)
        for pause in call.pauses:
            try:
                return await self._in_time(lambda: self._once(call), patience)
            except LOST:
                await asyncio.sleep(pause)
        return await self._in_time(lambda: self._once(call), patience)

    async def _in_time(self, ask: Callable[[], Coroutine[Any, Any, T]], patience: Patience) -> T:
        while True:
            try:
                return await ask()
            except (TooMany, StoreUnavailable) as error:
                await asyncio.sleep(patience.wait(error))

    async def _once(self, call: Call[T]) -> T:
        asked = call.asked()
        if call.form is not None:
            asked["content"] = call.form.a_sent()
        with self._where.reaching():
            response = await self._http.request(**asked)
        return call.answered(response)

    async def _iterate(self, pages: Pages) -> AsyncGenerator[Json]:
        cursor = None
        while True:
            page = await self._ask(pages(cursor))
            for item in page["items"]:
                yield item
            if (cursor := page["next"]) is None:
                return

    async def _change(self, pages: Pages) -> Json:
        so_far = bulk.added(None, await self._ask(pages(None)))
        while so_far["next"] is not None:
            so_far = bulk.added(so_far, await self._ask(pages(so_far["next"])))
        return so_far

    async def _fetch(self, fetch: Fetch[T]) -> T:
        patience = Patience(self._wait, self._on_wait, is_repeatable=True)
        return await self._in_time(lambda: self._fetched(fetch), patience)

    async def _fetched(self, fetch: Fetch[T]) -> T:
        with self._where.reaching():
            async with self._http.stream("GET", fetch.url) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                if not download.is_file(response):
                    await response.aread()
                    return fetch.value(checked(response))
                return fetch.value(await _arrived(response, fetch.to))

    async def _follow(self, follow: Follow) -> AsyncGenerator[Json]:
        while follow.goes_on:
            await asyncio.sleep(follow.pause())
            try:
                async with aclosing(self._connection(follow)) as events:
                    async for event in events:
                        yield event
            except Unreachable as error:
                follow.lost(error)

    async def _connection(self, follow: Follow) -> AsyncGenerator[Json]:
        with self._where.reaching():
            async with self._http.stream(**follow.asked()) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                follow.connected()
                async for message in httpx2.EventSource(response, max_event_size=None):
                    yield follow.read(message)
                    if not follow.goes_on:
                        return


async def _arrived(response: httpx2.Response, to: Path) -> Path:
    with download.Arrival(response, to) as arrival:
        async for piece in response.aiter_bytes(download.CHUNK):
            await asyncio.to_thread(arrival.add, piece)
        return await asyncio.to_thread(arrival.kept)
