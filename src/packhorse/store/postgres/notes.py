"""Progress, log and samples: what changes often and is not history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from packhorse.store import sql_files
from packhorse.store.base import Line, Report, Sample
from packhorse.store.postgres.connection import Session
from packhorse.store.postgres.rows import clean, ids, is_id

SQL = sql_files.load(__package__, "notes")


LEAST = 1
"""Bytes that a line counts for at least: empty ones would be kept without end."""


async def report(session: Session, reports: Sequence[Report]) -> None:
    latest: dict[tuple[str, str, int, str], Report] = {}
    peaks: dict[tuple[str, str, int, str, int], float] = {}
    for r in reports:
        if is_id(r.job_id):
            at = (r.job_id, *r.task, r.token)
            latest[at] = r
            peaks[*at, r.run] = max(r.fraction, peaks.get((*at, r.run), 0.0))
    if latest:
        values = (
            (*at, r.run, r.at, r.current, r.total, clean(r.message), peaks[*at, r.run]) for at, r in latest.items()
        )
        await session.fetch(SQL.report, *_columns(values))


async def log(session: Session, lines: Sequence[Line], keep: int) -> None:
    texts: dict[str, list[tuple[Line, str]]] = {}
    for line in lines:
        if is_id(line.job_id):
            texts.setdefault(line.job_id, []).append((line, clean(line.text)))
    sizes = {id: sum(max(LEAST, len(text.encode())) for _, text in found) for id, found in texts.items()}
    if not texts:
        return
    asked = (list(texts), [len(found) for found in texts.values()], list(sizes.values()))
    there = {str(id): (last, size) for id, last, size in await session.fetch(SQL.count_lines, *asked)}
    if not there:
        return
    values = (
        (id, n, *line.task, line.attempt, line.at, text)
        for id, (last, _) in there.items()
        for n, (line, text) in zip(count(last - len(texts[id]) + 1), texts[id], strict=False)
    )
    await session.fetch(SQL.add_lines, list(there), *_columns(values))
    excess = {id: size - keep for id, (_, size) in there.items() if size > keep}
    if excess:
        await session.fetch(SQL.drop_lines, list(excess), list(excess.values()))


async def sample(session: Session, samples: Sequence[Sample], keep: int) -> None:
    latest = {(s.job_id, s.at, *s.task): (s.cpu, s.memory) for s in samples if is_id(s.job_id)}
    if latest:
        await session.fetch(SQL.add_samples, *_columns((*at, *found) for at, found in latest.items()))
        await session.fetch(SQL.drop_samples, ids({at[0] for at in latest}), keep)


def _columns(found: Iterable[Sequence[object]]) -> list[Sequence[object]]:
    return list(zip(*found, strict=True))
