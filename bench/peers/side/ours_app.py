"""The app that packhorse's workers run when they are measured beside others."""

from __future__ import annotations

from bench.peers.side.ledger import note, take_long_async
from packhorse import App, Context, Params, needs

app = App("peers")


class Number(Params):
    n: int


@app.job(queue="async")
async def noop(n: int) -> None:
    note(n)


@app.job(queue="sync")
def plain(n: int) -> None:
    note(n)


@app.job(queue="async")
async def long(n: int) -> None:
    await take_long_async(n)


chain = app.pipeline("chain", Number)


@chain.stage(queue="async")
async def first(_: Context, p: Number) -> None:
    note(p.n, "first")


@chain.stage(queue="async")
async def second(_: Context, p: Number, before: None = needs(first)) -> None:  # noqa: ARG001 (it is the order)
    note(p.n, "second")


@chain.stage(queue="async")
async def third(_: Context, p: Number, before: None = needs(second)) -> None:  # noqa: ARG001
    note(p.n, "third")


plain_chain = app.pipeline("plain_chain", Number)


@plain_chain.stage(queue="sync")
def plain_first(_: Context, p: Number) -> None:
    note(p.n, "first")


@plain_chain.stage(queue="sync")
def plain_second(_: Context, p: Number, before: None = needs(plain_first)) -> None:  # noqa: ARG001
    note(p.n, "second")


@plain_chain.stage(queue="sync")
def plain_third(_: Context, p: Number, before: None = needs(plain_second)) -> None:  # noqa: ARG001
    note(p.n, "third")
