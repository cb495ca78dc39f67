"""Progress, log and samples on their way in: what changes often and is not history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from packhorse.core import json
from packhorse.store.base import Line, Report, Sample
from packhorse.store.redis import keys
from packhorse.store.redis.client import Link
from packhorse.store.redis.commit import METRICS, Member, plain
from packhorse.store.redis.public_view import announcement

MANY = 100
"""Reports in one script."""
PAGE = 256 * 1024
"""Bytes of log in one script, or a single line."""

_pack = msgspec.msgpack.Encoder().encode


async def report(link: Link, reports: Sequence[Report]) -> None:
    for first in range(0, len(reports), MANY):
        await link.run("report", _pack([_report(each) for each in reports[first : first + MANY]]))


def _report(r: Report) -> list[str]:
    task, total = keys.task(r.task), "" if r.total is None else f"{r.total:g}"
    body = json.encode((r.at, r.current, r.total, r.message)).decode()
    message = announcement("progress", r.task.stage, r.at, r.message, r.current, r.total)
    return [
        r.job_id, keys.entry(r.job_id, r.task), r.token, task, r.task.stage, str(r.run), str(r.fraction), body,
        f"{r.current:g}", total, f"{100 * r.fraction:.0f}", str(r.at), message,
    ]  # fmt: skip


async def log(link: Link, lines: Sequence[Line], keep: int) -> None:
    by_job: dict[str, list[str]] = {}
    size = 0
    for line in lines:
        by_job.setdefault(line.job_id, [line.job_id]).extend(
            (f"{line.attempt} {line.at!r} {keys.task(line.task)}", line.text)
        )
        size += len(line.text)
        if size > PAGE:
            await link.run("log", keep, _pack(list(by_job.values())))
            by_job, size = {}, 0
    if by_job:
        await link.run("log", keep, _pack(list(by_job.values())))


def sample(samples: Iterable[Sample], keep: int) -> list[Member]:
    """The newest by time, then by task: parallel tasks are sampled at one time and are told apart."""
    by_job: dict[str, list[Sample]] = {}
    for each in samples:
        by_job.setdefault(each.job_id, []).append(each)
    return [_samples(job_id, of_job, keep) for job_id, of_job in by_job.items()]


def _samples(job_id: str, samples: Sequence[Sample], keep: int) -> Member:
    ops: list[list[str]] = []
    for what in ("cpu", "memory"):
        key = keys.metrics(job_id, what)
        ops += [["ZADD", key, repr(s.at), f"{s.at!r} {keys.task(s.task)} {getattr(s, what)!r}"] for s in samples]
        ops.append(["ZREMRANGEBYRANK", key, "0", str(-keep - 1)])
        ops.append(["EXPIRE", key, METRICS])
    return plain(*ops, guards=[["exists", keys.job(job_id)]])
