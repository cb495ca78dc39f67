"""The state of a job as its viewers know it, kept up to date event by event.

A change of one of ten thousand elements costs as much as one of ten. What events of elements do not tell (whole stages,
the job itself) is read from the store again: see `Picture.take`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core.error_codes import WORKER_LOST
from packhorse.core.models import Event, Job
from packhorse.core.plan import StagePlan, Status, TaskStatus
from packhorse.jobs.explain import Past, Standing, estimate_stages, standing
from packhorse.schemas.progress import (
    SHORT,
    Reported,
    StageDocument,
    is_left_out,
    report_share,
    stage_peak,
    stages_to_json,
)
from packhorse.store.base import Progress
from packhorse.web.widgets import formatting, stages

OPEN = "par"  # letters of elements that have not ended

State = dict[str, Any]


class Picture:
    def __init__(self, job: Job, reported: Reported) -> None:
        self.job = job
        self.n = job.events
        """The number of the last event that it knows."""
        self._documents = stages_to_json(job, reported)
        document = {"run": job.run, "status": job.status, "stopping": job.stopping, "stages": self._documents}
        self.shape = stages.shape(document)
        """Changes when more of the page changes than its numbers."""
        self._report_count = 0
        self._standing: dict[str, Standing] = {}
        self._peaks: dict[str, float] = {}
        self._many = {
            plan.name: _Elements(job, plan, self._documents[plan.name], standing(job, plan.name, reported))
            for plan, stage in zip(job.plan.stages, job.stages, strict=True)
            if plan.over is not None and stage.tasks
        }
        self._read_stages(job.plan.index, reported)
        self.report(reported)

    @property
    def report_count(self) -> int:
        return self._report_count

    @property
    def losses(self) -> int:
        """Attempts of tasks that now wait or run again whose worker was lost."""
        tasks = (task for stage in self.job.stages for task in stage.tasks or ())
        return sum(task.attempt for task in tasks if task.error is not None and task.error.code == WORKER_LOST)

    @property
    def is_waiting(self) -> bool:
        """Whether there are reasons why it does not run."""
        return not self.job.status.is_terminal and not self.job.running_tasks()

    def take(self, events: Sequence[Event]) -> bool:
        """Whether the events only concern elements of running stages. Otherwise it has to be made anew."""
        for event in events:
            many = self._many.get(event.data.get("stage", ""))
            if self.job.is_stopped or event.n != self.n + 1 or many is None or not many.take(event):
                return False
            self.n = event.n
        return True

    def report(self, reported: Reported) -> None:
        """What running tasks say about their progress."""
        self._report_count = len(reported)
        own: dict[str, dict[int, Progress]] = {name: {} for name in self._many}
        for at, found in reported.items():
            if at.stage in own and found.run == self.job.run:
                own[at.stage][at.element] = found
        for name, each in self._many.items():
            each.report(own[name])
        self._read_stages((name for name in self._documents if name not in self._many or self.job.is_stopped), reported)

    def _read_stages(self, names: Iterable[str], reported: Reported) -> None:
        """Takes time by the number of their elements."""
        for name in names:
            self._documents |= stages_to_json(self.job, reported, [name])
            self._standing[name] = standing(self.job, name, reported)
            self._peaks[name] = stage_peak(self.job, self.job.plan.stage(name), self.job.stage(name), reported)

    def state(self, past: Past, now: float) -> State:
        """All but the elements."""
        running = {name: each for name, each in self._many.items() if each.is_open}
        documents = self._documents | {name: each.document for name, each in running.items()}
        standings = self._standing | {name: each.standing for name, each in running.items()}
        peaks = self._peaks | {name: each.peak for name, each in running.items()}
        left = estimate_stages(self.job, standings, past, now)
        return {
            "shape": self.shape,
            "progress": self._percent(peaks),
            **({} if left.seconds is None else {"left": formatting.between(left.seconds, left.most)}),
            "stages": {
                name: [each["progress"], stages.stage_text(each), stages.node_text(each), each["status"]]
                for name, each in documents.items()
            },
        }

    def cells(self) -> dict[str, str]:
        """One letter for each element of the stages that have any."""
        return {name: "".join(each.letters) for name, each in self._many.items()}

    def follow(self, known: Picture) -> None:
        """Report changes since that one. A stage with another number of elements gets a new grid."""
        for name, each in self._many.items():
            if name in known._many:
                each.follow(known._many[name])

    def changed_cells(self) -> dict[str, list[tuple[int, str]]]:
        """Since it was last asked: from which element on which letters stand now."""
        return {name: found for name, each in self._many.items() if (found := each.changed())}

    def _percent(self, peaks: Mapping[str, float]) -> float:
        if self.job.status is Status.COMPLETED:
            return 100.0
        weights = {plan.name: plan.weight for plan in self.job.plan.stages}
        done = sum(weight * peaks[name] for name, weight in weights.items())
        return min(SHORT, round(100.0 * done / sum(weights.values()), 2))


class _Elements:
    """Of one stage."""

    def __init__(self, job: Job, plan: StagePlan, document: StageDocument, known: Standing) -> None:
        stage = job.stage(plan.name)
        tasks = stage.tasks or ()
        self.letters = list(stages.letters(tasks))
        self._first = document, known
        """As it was when it was read."""
        self._counts = Counter(self.letters)
        self._left_out = sum(is_left_out(stage, task) for task in tasks)
        self.is_open = not job.is_stopped and stage.reason is None and any(self._counts[each] for each in OPEN)
        """Whether events of elements tell everything about it."""
        self._attempt = document["attempt"]
        self._message = document["message"]
        self._reports: Mapping[int, Progress] = {}
        self._changed: set[int] = set()

    def take(self, event: Event) -> bool:
        element, letter, left_out = event.data.get("element", -1), "", 0
        if not self.is_open or not 0 <= element < len(self.letters) or self.letters[element] not in OPEN:
            return False
        attempt = event.data.get("attempt", 0)
        match event.type:
            case "stage_started":
                letter = "r"
                self._attempt = max(self._attempt, attempt)
            case "stage_completed":
                letter = "c"
            case "stage_skipped":
                letter, left_out = "s", 1
            case "stage_failed" if event.data.get("tolerated"):
                letter, left_out = "f", 1
            case "retrying" if event.data.get("code") != WORKER_LOST:
                is_counted = "code" in event.data  # an attempt that was handed back does not count
                letter = "a" if attempt - (not is_counted) > 0 else "p"
        if not letter:
            return False
        before = self._status
        self._counts[self.letters[element]] -= 1
        self._counts[letter] += 1
        self.letters[element] = letter
        self._left_out += left_out
        self._changed.add(element)
        return self._status is before and any(self._counts[each] for each in OPEN)

    @property
    def _status(self) -> TaskStatus:
        """Of a stage that has elements left."""
        has_begun = self._counts["r"] or self._counts["c"] or self._left_out
        return TaskStatus.RUNNING if has_begun else TaskStatus.PENDING

    def report(self, reports: Mapping[int, Progress]) -> None:
        self._reports = {at: each for at, each in reports.items() if self.letters[at] in OPEN}
        newest = max(reports.values(), key=lambda each: each.at, default=None)
        self._message = None if newest is None else newest.message

    @property
    def percent(self) -> float:
        moving = sum(report_share(each) for at, each in self._reports.items() if self.letters[at] == "r")
        return round(100.0 * (self._done + moving) / len(self.letters), 2)

    @property
    def peak(self) -> float:
        moving = sum(min(each.peak, 1.0) for at, each in self._reports.items() if self.letters[at] in OPEN)
        return (self._done + moving) / len(self.letters)

    @property
    def _done(self) -> int:
        return self._counts["c"] + self._left_out

    @property
    def standing(self) -> Standing:
        return replace(self._first[1], percent=self.percent)

    @property
    def document(self) -> StageDocument:
        counts = self._counts
        return {
            **self._first[0],
            "progress": self.percent,
            "current": self._done,
            "message": self._message,
            "attempt": self._attempt,
            "elements": {
                "total": len(self.letters),
                "completed": counts["c"],
                "failed": counts["f"],
                "running": counts["r"],
                "skipped": counts["s"],
            },
        }

    def follow(self, known: _Elements) -> None:
        if len(known.letters) == len(self.letters):
            pairs = enumerate(zip(known.letters, self.letters, strict=True))
            self._changed = known._changed | {at for at, (old, new) in pairs if old != new}

    def changed(self) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for at in sorted(self._changed):
            if found and found[-1][0] + len(found[-1][1]) == at:
                found[-1] = found[-1][0], found[-1][1] + self.letters[at]
            else:
                found.append((at, self.letters[at]))
        self._changed.clear()
        return found
