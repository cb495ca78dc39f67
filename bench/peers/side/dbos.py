"""DBOS on PostgreSQL or SQLite: a queue of workflows, looked at every 10 ms (by default every second)."""

from __future__ import annotations

import threading
from typing import Any

from dbos import DBOS, DBOSClient

from bench.peers.side.given import SLOTS, URL
from bench.peers.side.ledger import STAGES, note, take_long

NAME = "bench"
client: Any = None


def launch() -> None:
    DBOS(
        config={
            "name": NAME,
            "system_database_url": URL,
            "log_level": "ERROR",
            "run_admin_server": False,
            "application_version": "1",
            "executor_id": "local",
        }
    )

    @DBOS.workflow(name="noop")
    def noop(i: int) -> None:
        note(i)

    @DBOS.step(name="step")
    def step(i: int, name: str) -> None:
        note(i, name)

    @DBOS.workflow(name="chain")
    def chain(i: int) -> None:
        for name in STAGES:
            step(i, name)

    @DBOS.workflow(name="long")
    def long(i: int) -> None:
        take_long(i)

    DBOS.launch()
    DBOS.register_queue(NAME, worker_concurrency=SLOTS or 100, polling_interval_sec=0.01)


def setup() -> None:
    launch()
    DBOS.destroy()


def connect() -> None:
    global client
    client = DBOSClient(system_database_url=URL)


def close() -> None:
    client.destroy()


def put(i: int) -> None:
    _enqueue("noop", i)


def put_chain(i: int) -> None:
    _enqueue("chain", i)


def put_long(i: int) -> None:
    _enqueue("long", i)


def _enqueue(workflow: str, i: int) -> None:
    client.enqueue({"queue_name": NAME, "workflow_name": workflow, "app_version": "1"}, i)


if __name__ == "__main__":
    launch()
    threading.Event().wait()
