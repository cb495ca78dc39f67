"""The commands for operators: workers, queues, pausing a queue, and statistics."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from packhorse.cli import output
from packhorse.cli.options import Remote, not_empty
from packhorse.client import Client, Json
from packhorse.plurals import counted

MIB = 1024**2
WORKER_COLUMNS = ("worker", "state", "seen", "slots", "cpu", "memory", "running")

Queue = Annotated[
    str,
    Parameter(
        validator=not_empty("the queue name is empty; list the queues with: packhorse queues"),
        help="Name of the queue.",
    ),
]


def workers(*, remote: Remote = Remote()) -> None:
    """List the workers: their tasks, the load of their host, and workers lost in the last 24 hours."""
    with Client(remote.url) as client:
        found = client.workers()
    empty = "No workers. Start one with: packhorse worker FILE"
    remote.print_list(found, WORKER_COLUMNS, worker_row, empty)


def queues(*, remote: Remote = Remote()) -> None:
    """List the queues: waiting tasks, workers, pauses."""
    with remote.client() as client:
        found = client.queues()
    columns = ("queue", "ready", "oldest", "running", "workers", "slots", "per minute", "waited", "paused")
    empty = "No queues. A worker publishes its pipelines and queues when it starts: packhorse worker FILE"
    remote.print_list(found, columns, _queue_row, empty)


def pause(queue: Queue, /, *, reason: str = "", remote: Remote = Remote()) -> None:
    """Pause a queue: workers start no more tasks from it. Running tasks continue.

    Args:
        reason: Reason, shown on the jobs that wait.
    """
    with remote.client() as client:
        _print_queue(client.pause(queue, reason), remote)


def resume(queue: Queue, /, *, remote: Remote = Remote()) -> None:
    """Resume a queue."""
    with remote.client() as client:
        _print_queue(client.resume(queue), remote)


def stats(
    *, window: str = "1h", queue: str | None = None, pipeline: str | None = None, remote: Remote = Remote()
) -> None:
    """Show job counts, running and waiting tasks, and throughput.

    Args:
        window: Period to report on, such as 10m. Maximum: 72h.
        queue: Only attempts in this queue.
        pipeline: Only attempts of this pipeline.
    """
    with Client(remote.url) as client:
        found = client.stats(window=window, queue=queue, pipeline=pipeline)
    remote.print_facts(found, {**overview(found), **_window(found["window"], window)})


def overview(found: Json) -> dict[str, str]:
    """What there is now."""
    jobs, more = found["jobs"], "+" if found["waiting_capped"] else ""
    capped = {name: "+" if name in jobs["capped"] else "" for name in ("active", "completed", "failed", "cancelled")}
    kept = ", ".join(f"{jobs[name]}{mark} {name}" for name, mark in capped.items())
    slots, workers = counted(found["slots"], "slot"), counted(found["workers"], "worker")
    return {
        "jobs": f"{jobs['total']}{'+' if jobs['capped'] else ''} kept: {kept}",
        "running": f"{found['running']} of {slots}, on {workers}",
        "waiting": f"{found['waiting']}{more}, the oldest for {seconds(found['oldest_wait_seconds'])}",
        "today": f"{found['processed_today']} ended since midnight UTC, {found['failed_24h']} failed in 24 h",
    }


def _window(window: Json, asked: str) -> dict[str, str]:
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(window["outcomes"].items())) or "nothing"
    return {
        f"last {asked}": f"{outcomes}; {window['per_minute']:g} a minute",
        "waited": percentiles(window["wait_seconds"]),
        "took": percentiles(window["run_seconds"]),
    }


def percentiles(found: Json) -> str:
    if found["p50"] is None:
        return "no data"
    return ", ".join(f"{name} {seconds(value)}" for name, value in found.items())


def seconds(value: float | None) -> str:
    """Short, as people say it."""
    if value is None:
        return ""
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def worker_row(worker: Json) -> tuple[object, ...]:
    seen = (worker["seen_at"] or "")[11:19]
    slots = ", ".join(f"{name} {each['busy']}/{each['slots']}" for name, each in worker["queues"].items())
    return worker["worker_id"], worker["state"], seen, slots, *_machine(worker["machine"]), _in_hand(worker)


def _machine(machine: Json | None) -> tuple[str, str]:
    """What is not fresh is said to be so: it must not look as if it were how things are."""
    if machine is None:
        return "", ""
    stale = "" if machine["is_fresh"] else " (stale)"
    memory = f"{machine['memory_bytes'] // MIB} of {machine['memory_total_bytes'] // MIB} MiB"
    return f"{100 * machine['cpu']:.0f} % of {machine['cores']}{stale}", memory + stale


def _in_hand(worker: Json) -> str:
    lost = worker["lost"]
    if lost is not None:
        named = ", ".join(f"{each['job_id']} {each['stage']} ({each['status'] or 'gone'})" for each in lost["work"])
        when = lost["missed_at"][11:19]
        tasks = f"{counted(lost['tasks'], 'task')} returned to the queue{': ' if named else ''}{named}"
        return f"lost at {when}, noticed by {lost['noticed_by']}; {tasks}"
    return ", ".join(f"{each['job_id']} {each['stage']}" for each in worker["work"])


def _queue_row(queue: Json) -> tuple[object, ...]:
    ready, oldest, waited = waiting(queue)
    served = (queue["running"], queue["workers"], queue["slots"], f"{queue['per_minute']:g}")
    return queue["name"], ready, oldest, *served, waited, _pause_text(queue["paused"])


def waiting(queue: Json) -> tuple[int, str, str]:
    """Tasks that are ready, how long the oldest has waited, and how long the last ones did."""
    oldest = seconds(queue["oldest_seconds"]) if queue["ready"] else ""
    waited = percentiles(queue["wait_seconds"]) if queue["wait_seconds"]["p50"] is not None else ""
    return queue["ready"], oldest, waited


def _print_queue(queue: Json, remote: Remote) -> None:
    remote.print_one(queue, f"Queue {queue['name']} is {'paused' if queue['paused'] else 'active'}.")


def _pause_text(pause: Json | None) -> str:
    if pause is None:
        return ""
    why = f": {pause['reason']}" if pause["reason"] else ""
    return f"by {pause['by']} at {output.clock(pause['at'])}{why}"
