"""The two clients: `Client`, and `AsyncClient` for programs with an event loop. Both have every call of `Calls`."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, closing
from functools import update_wrapper
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar, overload

import httpx2

from packhorse.client import jobs, operations
from packhorse.client.call import Call, Follow, Json, Pages, RetryBudget
from packhorse.client.files import CHUNK, IncomingFile
from packhorse.client.server import Server, error_of
from packhorse.errors import PackhorseError, Unreachable

P = ParamSpec("P")
T = TypeVar("T")

WAIT = 30.0  # default for how many seconds one call waits in all


class Value(Generic[P, T]):
    """A call whose answer is one value: `Client` returns it, `AsyncClient` returns a coroutine."""

    def __init__(self, describe: Callable[P, Call[T]]) -> None:
        self.describe = describe

    @overload
    def __get__(self, client: Client, owner: type[Client]) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type[AsyncClient]) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        """For type checkers only: each client has a function in its place."""


class Stream(Generic[P]):
    """A call that gives one item after the other: to be read with ``for``, or with ``async for``."""

    def __init__(self, describe: Callable[P, Follow | Pages]) -> None:
        self.describe = describe

    @overload
    def __get__(self, client: Client, owner: type[Client]) -> Callable[P, Iterator[Json]]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type[AsyncClient]) -> Callable[P, AsyncGenerator[Json]]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        """For type checkers only: each client has a function in its place."""


class Calls:
    """Every call, once for both clients. Each client gets a function of its own for it."""

    pipelines = Value(jobs.pipelines)
    submit = Value(jobs.submit)
    submit_many = Value(jobs.submit_many)
    get = Value(jobs.get)
    explain = Value(jobs.explain)
    estimate = Value(jobs.estimate)
    history = Value(jobs.history)
    metrics = Value(jobs.metrics)
    list = Value(jobs.page)
    iterate = Stream(jobs.every)
    events = Stream(jobs.events)
    log = Value(jobs.log)
    cancel = Value(jobs.cancel)
    retry = Value(jobs.retry)
    delete = Value(jobs.delete)
    count = Value(jobs.count)
    cancel_jobs = Value(jobs.cancel_jobs)
    retry_jobs = Value(jobs.retry_jobs)
    delete_jobs = Value(jobs.delete_jobs)
    promote = Value(jobs.promote)
    destinations = Value(jobs.destinations)
    me = Value(jobs.me)
    tokens = Value(jobs.tokens)
    token = Value(jobs.token)
    revoke = Value(jobs.revoke)
    artifacts = Value(jobs.artifacts)
    result = Value(jobs.result)
    artifact = Value(jobs.artifact)

    queues = Value(operations.queues)
    pause = Value(operations.pause)
    resume = Value(operations.resume)
    limits = Value(operations.limits)
    limit = Value(operations.limit)
    set_limit = Value(operations.set_limit)
    reset_limit = Value(operations.reset_limit)
    workers = Value(operations.workers)
    stats = Value(operations.stats)
    health = Value(operations.health)
    keys = Value(operations.keys)
    key = Value(operations.key)
    create_key = Value(operations.create_key)
    rotate_key = Value(operations.rotate_key)
    revoke_key = Value(operations.revoke_key)
    key_limits = Value(operations.key_limits)
    sessions = Value(operations.sessions)
    end_session = Value(operations.end_session)
    audit = Value(operations.audit)
    webhooks = Value(operations.webhooks)
    add_webhook = Value(operations.add_webhook)
    remove_webhook = Value(operations.remove_webhook)
    test_webhook = Value(operations.test_webhook)
    deliveries = Value(operations.deliveries)
    failures = Value(operations.failures)
    failure = Value(operations.failure)
    failure_groups = Stream(operations.failure_groups)
    failure_group = Value(operations.failure_group)
    retry_failures = Value(operations.retry_failures)
    dismiss_failures = Value(operations.dismiss_failures)
    failure_orders = Value(operations.failure_orders)
    failure_order = Value(operations.failure_order)

    schedule = Value(operations.schedule)
    put_schedule = Value(operations.put_schedule)
    delete_schedule = Value(operations.delete_schedule)
    pause_schedule = Value(operations.pause_schedule)
    resume_schedule = Value(operations.resume_schedule)
    reset_schedule = Value(operations.reset_schedule)
    rollback_schedule = Value(operations.rollback_schedule)
    run_schedule = Value(operations.run_schedule)
    create_trigger_token = Value(operations.create_trigger_token)
    trigger_schedule = Value(operations.trigger_schedule)
    schedule_runs = Value(operations.schedule_runs)
    schedule_versions = Value(operations.schedule_versions)
    schedule_version = Value(operations.schedule_version)
    diff_schedule = Value(operations.diff_schedule)
    preview_schedule = Value(operations.preview_schedule)
    schedules = Stream(operations.schedules)
    job_config = Value(operations.job_config)
    put_job_config = Value(operations.put_job_config)
    job_configs = Value(operations.job_configs)
    job_status = Value(operations.job_status)

    _http_client: ClassVar[type[Any]]

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
            self._http = self._http_client(**self._server.options())

    def __init_subclass__(cls) -> None:
        if Calls in cls.__bases__:  # a user's subclass inherits these, and may override them
            for name, call in vars(Calls).items():
                if isinstance(call, Value | Stream):
                    setattr(cls, name, _method(cls, call))


def _method(client: Any, call: Value[..., Any] | Stream[...]) -> Callable[..., Any]:
    """The function for a call, with the name, docstring and signature of its description, for `help` and the docs."""
    describe = call.describe
    is_async = inspect.iscoroutinefunction(client._ask)

    def ask(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._ask(describe(*args, **kwargs))

    async def ask_async(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await self._ask(describe(*args, **kwargs))

    def stream(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        found = describe(*args, **kwargs)
        return self._follow(found) if isinstance(found, Follow) else self._iterate(found)

    signature = inspect.signature(describe)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for each in signature.parameters.values():
        parameters += _filters(each, describe) if each.kind is each.VAR_KEYWORD else [each]
    if isinstance(call, Stream):
        method, returns = stream, "AsyncGenerator[Json]" if is_async else "Iterator[Json]"
    else:
        method, returns = ask_async if is_async else ask, signature.return_annotation[len("Call[") : -1]
    update_wrapper(method, describe)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=returns
    )
    return method


def _filters(parameter: inspect.Parameter, describe: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """What ``**filter: Unpack[JobFilter]`` stands for: one keyword for each filter."""
    filters = describe.__globals__[parameter.annotation[len("Unpack[") : -1]]
    for name in filters.__annotations__:
        yield parameter.replace(name=name, kind=parameter.KEYWORD_ONLY, default=None, annotation="str | None")


class Client(Calls):
    """packhorse over HTTP.

    Talks to the server at ``url``; default: the setting ``url``, else the local ``packhorse dev``. ``key`` is an API
    key or a job's token; default: the setting ``key``. Raises the errors of `packhorse.errors`: the same the server
    raised, or `Unreachable`. Use it in a ``with``, or call `close`.

    A call that may be sent twice (what is read, deleted or submitted) waits when the server is busy (429 and 503 with
    ``Retry-After``): up to ``wait`` seconds in all, 0 for never. ``on_wait`` is called each time, with the seconds and
    the error.
    """

    _http: httpx2.Client
    _http_client = httpx2.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def wait(self, job_id: str, timeout: float | None = None) -> Json:
        """The job when it has ended, or as it is after ``timeout`` seconds: look at the status of what you get."""
        with closing(self._follow(jobs.end(job_id, timeout))) as events:
            for _ in events:
                pass
        return self.get(job_id)

    def _ask(self, call: Call[T]) -> T:
        while True:
            try:
                answer = self._send(call)
            except PackhorseError as error:
                return call.give_up(error)
            if (rest := call.next_page(answer)) is None:
                return answer
            call = rest

    def _send(self, call: Call[T]) -> T:
        budget = RetryBudget(call, self._wait, self._on_wait)
        while True:
            try:
                answer = self._send_once(call)
                again = budget.next_try(call)
            except PackhorseError as error:
                time.sleep(budget.pause(error))
                continue
            if again is None:
                return answer
            call, pause = again
            time.sleep(pause)

    def _send_once(self, call: Call[T]) -> T:
        request = call.request()
        if call.form is not None:
            request["content"] = call.form.chunks()
        with self._server.translate_errors(), self._http.stream(**request) as response:
            if call.to is not None and response.is_success and "content-disposition" in response.headers:
                with IncomingFile(response, call.to) as file:
                    for piece in response.iter_bytes(CHUNK):
                        file.add(piece)
                    return call.read(file.finish())
            response.read()
        return call.result(response)

    def _iterate(self, pages: Pages) -> Iterator[Json]:
        cursor = None
        while True:
            page = self._ask(pages(cursor))
            yield from page["items"]
            if (cursor := page["next"]) is None:
                return

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


class AsyncClient(Calls):
    """packhorse over HTTP, for one event loop.

    The same as `Client`, with every call a coroutine, and `events` and `iterate` to be read with ``async for``. Use it
    in an ``async with``, or await `close`.
    """

    _http: httpx2.AsyncClient
    _http_client = httpx2.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def wait(self, job_id: str, timeout: float | None = None) -> Json:
        """The job when it has ended, or as it is after ``timeout`` seconds: look at the status of what you get."""
        async with aclosing(self._follow(jobs.end(job_id, timeout))) as events:
            async for _ in events:
                pass
        return await self.get(job_id)

    async def _ask(self, call: Call[T]) -> T:
        while True:
            try:
                answer = await self._send(call)
            except PackhorseError as error:
                return call.give_up(error)
            if (rest := call.next_page(answer)) is None:
                return answer
            call = rest

    async def _send(self, call: Call[T]) -> T:
        budget = RetryBudget(call, self._wait, self._on_wait)
        while True:
            try:
                answer = await self._send_once(call)
                again = budget.next_try(call)
            except PackhorseError as error:
                await asyncio.sleep(budget.pause(error))
                continue
            if again is None:
                return answer
            call, pause = again
            await asyncio.sleep(pause)

    async def _send_once(self, call: Call[T]) -> T:
        request = call.request()
        if call.form is not None:
            request["content"] = call.form.async_chunks()
        with self._server.translate_errors():
            async with self._http.stream(**request) as response:
                if call.to is not None and response.is_success and "content-disposition" in response.headers:
                    with IncomingFile(response, call.to) as file:
                        async for piece in response.aiter_bytes(CHUNK):
                            await asyncio.to_thread(file.add, piece)
                        return call.read(await asyncio.to_thread(file.finish))
                await response.aread()
        return call.result(response)

    async def _iterate(self, pages: Pages) -> AsyncGenerator[Json]:
        cursor = None
        while True:
            page = await self._ask(pages(cursor))
            for item in page["items"]:
                yield item
            if (cursor := page["next"]) is None:
                return

    async def _follow(self, follow: Follow) -> AsyncGenerator[Json]:
        while follow.goes_on:
            await asyncio.sleep(follow.pause())
            try:
                async with aclosing(self._connection(follow)) as events:
                    async for event in events:
                        yield event
            except Unreachable as error:
                follow.connection_lost(error)

    async def _connection(self, follow: Follow) -> AsyncGenerator[Json]:
        with self._server.translate_errors():
            async with self._http.stream(**follow.request()) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                follow.connected()
                async for message in httpx2.EventSource(response, max_event_size=None):
                    yield follow.read(message)
                    if not follow.goes_on:
                        return
