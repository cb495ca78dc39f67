"""Celery on Redis: acknowledged late, results ignored, and many prefetched, as its manual says for short tasks."""

from __future__ import annotations

from celery import Celery, chain

from bench.peers.side.given import IS_SAFE, URL
from bench.peers.side.ledger import STAGES, note, take_long

app = Celery("bench", broker=URL)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=64,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)
if IS_SAFE:
    app.conf.update(
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        broker_transport_options={
            "visibility_timeout": 10,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "unacked_restore_limit": 100,
        },
    )


@app.task(name="noop")
def noop(i: int) -> None:
    note(i)


@app.task(name="stage")
def stage(i: int, name: str) -> None:
    note(i, name)


@app.task(name="long")
def long(i: int) -> None:
    take_long(i)


def put(i: int) -> None:
    noop.delay(i)


def put_chain(i: int) -> None:
    chain(*(stage.si(i, name) for name in STAGES)).delay()


def put_long(i: int) -> None:
    long.delay(i)
