"""Joins all findings to one timeline; what is seen in consecutive frames becomes one entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from packhorse_video.decoder import About
from packhorse_video.findings import Finding, Report

SLACK = 2.2
"""Multiple of the sampling distance: a thing missing from one sample still counts as seen."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    until: float
    processor: str
    label: str
    score: float | None = None
    """Best score."""
    seen: int = 1
    """Number of frames."""
    most: int = 1
    """Largest number in one frame."""
    speaker: str | None = None


class Timeline(msgspec.Struct, frozen=True):
    video: About
    models: dict[str, str]
    """Model of each processor that ran."""
    notes: dict[str, str]
    """Why a processor did not run or had no input."""
    entries: list[Entry]


def read(path: Path) -> Timeline:
    return msgspec.json.decode(path.read_bytes(), type=Timeline)


def join(about: About, reports: Sequence[Report], notes: Mapping[str, str], every: float) -> Timeline:
    """``every``: seconds between two samples."""
    entries = [entry for report in reports for entry in _entries(report, about, every)]
    return Timeline(
        about,
        {report.processor: report.model for report in reports},
        dict(notes),
        sorted(entries, key=lambda entry: (entry.at, entry.processor, entry.label)),
    )


def _entries(report: Report, about: About, every: float) -> Iterable[Entry]:
    groups: dict[str, list[Finding]] = {}
    for finding in report.findings:
        if finding.box is None:
            until = finding.at if finding.until is None else finding.until
            yield Entry(finding.at, until, report.processor, finding.label, finding.score, speaker=finding.speaker)
        else:
            groups.setdefault(finding.label, []).append(finding)
    for label, group in groups.items():
        for run in _runs(group, every * SLACK):
            times = [finding.at for finding in run]
            yield Entry(
                times[0],
                round(min(times[-1] + every, about.duration), 3),
                report.processor,
                label,
                max(finding.score or 0.0 for finding in run),
                len(set(times)),
                max(times.count(at) for at in set(times)),
            )


def _runs(group: Sequence[Finding], gap: float) -> list[list[Finding]]:
    """In order of time; a new one begins where it was not seen for longer than the gap."""
    runs: list[list[Finding]] = []
    for finding in group:
        if runs and finding.at - runs[-1][-1].at <= gap:
            runs[-1].append(finding)
        else:
            runs.append([finding])
    return runs
