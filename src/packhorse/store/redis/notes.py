"""Progress, log and samples: what changes often and is not history."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core import json
from packhorse.core.models import TaskId
from packhorse.store.base import Line, Progress, Report, Sample
from packhorse.store.redis import keys
from packhorse.store.redis.rows import announcement, by_task
from packhorse.store.redis.session import Member, Session, pack, pack_effects

MANY = 100
"""Reports in one script."""
PAGE = 256 * 1024
"""Bytes of log in one script, or a single line."""


class NoteStore(Session):
    async def report(self, reports: Sequence[Report]) -> None:
        self._open()
        for first in range(0, len(reports), MANY):
            await self._link.run("report", pack([_report(each) for each in reports[first : first + MANY]]))

    async def log(self, lines: Sequence[Line], *, keep: int) -> None:
        self._open()
        by_job: dict[str, list[str]] = {}
        size = 0
        for n, line in enumerate(lines, 1):
            head = f"{line.attempt} {line.at!r} {keys.task(line.task)}"
            by_job.setdefault(line.job_id, [line.job_id]).extend((head, line.text))
            size += len(line.text)
            if size > PAGE or n == len(lines):
                await self._link.run("log", keep, pack(list(by_job.values())))
                by_job, size = {}, 0

    async def sample(self, samples: Sequence[Sample], *, keep: int) -> None:
        """The newest by time, then by task: parallel tasks are sampled at one time and kept apart."""
        by_job: dict[str, list[Sample]] = {}
        for each in samples:
            by_job.setdefault(each.job_id, []).append(each)
        await self._write.put(*(_samples(job_id, of_job, keep) for job_id, of_job in by_job.items()))

    async def progress(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
        answers = await self._link.ask([["HGETALL", keys.progress(job_id)] for job_id in job_ids])
        return {
            job_id: {at: _progress(at, text) for at, text in by_task(flat).items()}
            for job_id, flat in zip(job_ids, answers, strict=True)
            if flat
        }

    async def lines(
        self, job_id: str, *, after: int = 0, limit: int = 1000, stage: str | None = None, newest: bool = False
    ) -> list[Line]:
        found = await self._link.run("lines", job_id, after, limit, stage or "", int(newest))
        return [_line(job_id, text.decode()) for text in (found[::-1] if newest else found)]

    async def samples(self, job_id: str) -> list[Sample]:
        names = [keys.metrics(job_id, what) for what in ("cpu", "memory")]
        cpu, memory = await self._link.ask([["ZRANGE", name, "0", "-1"] for name in names])
        used = dict(text.decode().rpartition(" ")[::2] for text in memory)
        found: list[Sample] = []
        for text in cpu:
            where, _, value = text.decode().rpartition(" ")
            at, _, task = where.partition(" ")
            if where in used:
                found.append(Sample(job_id, keys.task_from(task), float(at), float(value), int(used[where])))
        return sorted(found, key=lambda sample: (sample.at, sample.task))


def _report(r: Report) -> list[str]:
    task, total = keys.task(r.task), "" if r.total is None else f"{r.total:g}"
    body = json.encode((r.at, r.current, r.total, r.message)).decode()
    message = announcement("progress", r.task.stage, r.at, r.message, r.current, r.total)
    return [
        r.job_id, keys.entry(r.job_id, r.task), r.token, task, r.task.stage, str(r.run), str(r.fraction), body,
        f"{r.current:g}", total, f"{100 * r.fraction:.0f}", str(r.at), message,
    ]  # fmt: skip


def _samples(job_id: str, samples: Sequence[Sample], keep: int) -> Member:
    effects: list[list[str]] = []
    for what in ("cpu", "memory"):
        flat = [text for s in samples for text in (repr(s.at), f"{s.at!r} {keys.task(s.task)} {getattr(s, what)!r}")]
        effects.append(["sample", keys.metrics(job_id, what), str(keep), keys.METRICS_LAST, *flat])
    return pack_effects(*effects, guards=[["exists", keys.job(job_id)]])


def _progress(at: TaskId, text: bytes) -> Progress:
    run, peak, body = text.split(b" ", 2)
    time, current, total, message = json.record(body, tuple[float, float, float | None, str])
    return Progress(at, int(run), time, current, total, message, float(peak))


def _line(job_id: str, text: str) -> Line:
    head, _, said = text.partition("\n")
    n, attempt, at, task = head.split(" ", 3)
    return Line(job_id, keys.task_from(task), int(attempt), float(at), said, int(n))
