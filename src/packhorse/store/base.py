"""The contract of a store. One suite in tests/contract holds every store to it.

Limits, quotas and statistics are in `counters.py`, failures in `failures.py`. Everything else that is not a job is a
record, and `collections/` gives records their meaning.

Two handles on one store, in one process, in two, or on two machines, see one state. Every method may raise
`StoreUnavailable`; a write may raise `UnknownOutcome`, after which the caller must look before it does anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from msgspec import Struct

from packhorse.core import lifecycle
from packhorse.core.changes import Change, EndLease, Grant, MakeDue, ReleaseSlot
from packhorse.core.models import Event, Job, Result, Spec, TaskId
from packhorse.core.plan import Definition as Definition
from packhorse.core.plan import Status
from packhorse.core.records import Drop, LogEntry, Put, Record
from packhorse.errors import CorruptRecord, PackhorseError
from packhorse.store.counters import Charge as Charge
from packhorse.store.counters import Counters as Counters
from packhorse.store.counters import Spent as Spent
from packhorse.store.counters import Statistics
from packhorse.store.failures import FailureFilter as FailureFilter
from packhorse.store.failures import FailureGroup as FailureGroup
from packhorse.store.failures import Failures as Failures
from packhorse.store.limits import Holder as Holder
from packhorse.store.limits import Limits as Limits
from packhorse.store.limits import LimitState as LimitState

Decide = Callable[[Job, TaskId], Change | None]


class Starter:
    """Decides to start whatever is claimed, as a worker does.

    A store may make the starts that `lifecycle.prepare` has prepared by itself, with tokens from here.
    """

    def __init__(self, tokens: Iterator[str], worker: str, lease: float, now: Callable[[], float]) -> None:
        self.worker = worker
        self.lease = lease
        self._now = now
        self._tokens = tokens
        self._unused: list[str] = []

    def __call__(self, job: Job, task: TaskId) -> Change:
        [token] = self.take(1)
        return lifecycle.start(job, task, token=token, worker=self.worker, lease=self.lease, now=self._now())

    def take(self, count: int) -> list[str]:
        """Tokens for ``count`` starts."""
        missing = count - len(self._unused)
        self._unused += islice(self._tokens, max(0, missing))
        taken, self._unused = self._unused[:count], self._unused[count:]
        return taken

    def give_back(self, tokens: Iterable[str]) -> None:
        """Tokens that no attempt has. Those of a claim whose answer was lost may be in use and are not given back."""
        self._unused += tokens


class Claim(Struct, frozen=True):
    """An attempt that was started, with all it needs to run."""

    job: Job
    task: TaskId
    spec: Spec
    upstream: Mapping[str, tuple[Result, ...]]
    """For each stage the task needs, its results in element order."""
    trouble: CorruptRecord | None = None
    """Why the spec or a result cannot be read. It is still started, and then failed: its end is recorded."""

    @property
    def token(self) -> str:
        task = self.job.task(self.task)
        assert task is not None
        assert task.token is not None
        return task.token


class Lease(NamedTuple):
    job_id: str
    task: TaskId
    token: str


class OverdueTasks(NamedTuple):
    now: float
    """The time by which the store has judged them."""
    tasks: list[tuple[Job, TaskId]]


class Renewal(Struct, frozen=True):
    lost: frozenset[Lease]
    """No longer ours: whatever runs there must be ended, and nothing of it counts."""
    stopping: frozenset[Lease]
    """Still ours, but the job is being stopped."""


def is_own_work(change: Change) -> bool:
    """Whether only who runs the attempt has to do with it: it has begun or ended, nothing is due or has to stop."""
    is_attempt = False
    for effect in change.effects:
        # The next job in the line of the slot is due then, or what is parked under the limit.
        if isinstance(effect, MakeDue | ReleaseSlot) or (isinstance(effect, EndLease) and effect.limits):
            return False
        is_attempt = is_attempt or isinstance(effect, Grant | EndLease)
    return is_attempt and change.after.stopping is None


SLACK = 86_400.0
"""Seconds by which the clock of a process that makes an id may differ from the store's."""


def _id_at(moment: float) -> str:
    """The first UUIDv7 of that moment."""
    digits = f"{max(0, int(moment * 1000)):012x}"
    return f"{digits[:8]}-{digits[8:]}-0000-0000-000000000000"


class Filter(Struct, frozen=True):
    tenant: str | None = None
    user: str | None = None
    status: Status | None = None
    pipeline: str | None = None
    created_from: float | None = None
    created_until: float | None = None

    def matches(self, job: Job) -> bool:
        mine = (job.tenant, job.user, job.status, job.plan.pipeline)
        wanted = (self.tenant, self.user, self.status, self.pipeline)
        return (
            all(want is None or want == has for want, has in zip(wanted, mine, strict=True))
            and (self.created_from is None or job.created_at >= self.created_from)
            and (self.created_until is None or job.created_at < self.created_until)
        )

    def ids(self) -> tuple[str | None, str | None]:
        """Ids between which the jobs lie: an id says when it was made, give or take the clock of who made it."""
        low = None if self.created_from is None else _id_at(self.created_from - SLACK)
        return low, None if self.created_until is None else _id_at(self.created_until + SLACK)

    def looks(self, most: int) -> int:
        """How many jobs to look at to count ``most``: a time, and a user's jobs of one pipeline, are in no index."""
        return most + 1 if self.is_indexed else most * LOOKS

    @property
    def is_indexed(self) -> bool:
        return self.created_from is self.created_until is None and None in (self.user, self.pipeline)


class Count(NamedTuple):
    number: int
    is_all: bool
    """False: there may be more."""


LOOKS = 10
"""How many jobs are looked at, for each that is counted at most, where no index knows which of them match."""


class Report(Struct, frozen=True):
    """Progress of one attempt. Never history: the latest value replaces the one before."""

    job_id: str
    task: TaskId
    token: str
    run: int
    at: float
    current: float = 0.0
    total: float | None = None
    message: str = ""

    @property
    def fraction(self) -> float:
        return min(1.0, max(0.0, self.current / self.total)) if self.total else 0.0


class Progress(Struct, frozen=True):
    """The latest report of a task, and the furthest it has been in this run."""

    task: TaskId
    run: int
    at: float
    current: float
    total: float | None
    message: str
    peak: float


class Line(Struct, frozen=True):
    """Log text of one attempt. ``n`` is given by the store, rising per job, gaps where old lines were dropped."""

    job_id: str
    task: TaskId
    attempt: int
    at: float
    text: str
    n: int = 0


class Sample(Struct, frozen=True):
    job_id: str
    task: TaskId
    at: float
    cpu: float
    """Of one core, over the time since the last sample."""
    memory: int


class Finding(Struct, frozen=True):
    """One line of the self-check."""

    name: str
    is_ok: bool
    value: str
    meaning: str
    part: str = "settings"
    """What it is about: store, files, workers, background tasks, queues, host, or how the store is set up."""
    measured_at: float | None = None
    """None for what was looked at just now."""


class Snapshot(Struct, frozen=True):
    """Everything that is kept of one job, as a page shows it."""

    job: Job
    spec: Spec | None
    results: Mapping[TaskId, Result]
    progress: Mapping[TaskId, Progress]
    events: Sequence[Event]
    """The newest, in order."""
    lines: Sequence[Line]
    """The newest of the log, in order; of one stage if one was named."""
    last_line: int
    """The number of the newest line of any stage, and no smaller than that of any in ``lines``."""
    samples: Sequence[Sample]


class Jobs(Protocol):
    async def commit(self, changes: Sequence[Change]) -> list[PackhorseError | None]:
        """Make each change whole or not at all, in order; say per change why it was refused, or None.

        A change is made if the stored version and lineage are still those of ``before`` (None: the job does not exist)
        and every guard holds. Refusals: `Conflict`, `LeaseLost`, `SlotTaken`, `AlreadySubmitted`. Changes of one job
        may follow each other in one call, each decided on the ``after`` of the one before; behind a refused one they
        are refused too, for the version they were decided on may by now be somebody else's. Otherwise a refusal or an
        error is its own: the neighbours are made. When this returns, what was made is durable.
        """

    async def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """The jobs in the order asked for, None where there is none."""

    async def find(self, filter: Filter, *, before: str | None = None, limit: int = 50) -> list[Job]:
        """Jobs, newest first, older than the job id ``before``. Never reads more than about ``limit`` matching rows.

        A job whose record cannot be read is logged and left out, and an older one takes its place: a list that is
        shorter than ``limit`` has come to its end.
        """

    async def count(self, filters: Sequence[Filter], *, most: int) -> list[Count]:
        """For each filter, how many jobs match, without those that are being purged; counted no further than ``most``.

        Looks at no more than about ``filter.looks(most)`` jobs for a filter, however few of them match.
        """

    async def snapshot(self, job_id: str, *, events: int, lines: int, stage: str | None = None) -> Snapshot | None:
        """One job with everything kept apart from it, in one call: at most so many events and lines of log.

        What the store writes meanwhile may show in one part and not in another, but a line past ``last_line`` is never
        in ``lines``.
        """

    async def specs(self, job_ids: Sequence[str]) -> dict[str, Spec]: ...

    async def results(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]: ...

    async def events(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Events numbered ``after`` + 1 and on, without gaps."""

    async def has_change(self, job_id: str, change_id: str) -> bool:
        """Whether this change was committed: what to ask after `UnknownOutcome`."""

    async def find_by_key(self, key: str) -> tuple[str, str] | None:
        """Job id and fingerprint that an idempotency key was used for."""

    async def holder(self, slot: str) -> str | None:
        """The job that holds the slot."""

    async def line(self, slot: str, *, limit: int) -> list[str]:
        """The job that holds the slot, and behind it those that wait for it, in the order of their commits."""


class Queue(Protocol):
    async def claim(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        """Commit ``decide(job, task)`` for due tasks of these kinds, up to so many per queue, most urgent first.

        Urgent means priority, then age of the job; what limits and fair shares change of that, `Limits` says. Two
        callers never receive the same attempt. The store picks, ``decide`` decides; where it returns None or refuses,
        or nobody can read the job, the entry is removed, for nothing will ever start it.
        """

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        """Move the deadline of the leases that still carry their token. One call for all of a worker's leases.

        With None for the time, no deadline is moved: the caller only wants to know how its leases stand.
        """

    async def overdue(
        self, limit: int, *, queued_after: float | None = None, leased_after: float | None = None
    ) -> OverdueTasks:
        """Tasks whose lease is over by the store's clock, longest over first, with what that clock said.

        With ``queued_after``, instead: delayed tasks that were queued after that time, the latest first. If it is in
        the future, they were queued by a clock that was ahead. With ``leased_after``: tasks whose lease is over after
        that time, the latest first.

        `now` is the value of that very read, not what the process believes: the reaper compares it with its own
        monotonic clock, to find out whether the store's clock was set meanwhile.
        """

    async def held_by(self, worker: str, limit: int) -> list[tuple[Job, TaskId]]:
        """Tasks leased to the worker."""

    async def expired(self, limit: int) -> list[Job]:
        """Active jobs, not being stopped yet, whose deadline is over."""

    async def ahead(self, job: Job, task: TaskId, *, limit: int = 1000) -> int:
        """Entries ready in the task's queue, of whatever kind, that go before it; counted no further than ``limit``."""

    async def ready(self, kinds: Mapping[str, Collection[str]], *, limit: int = 1000) -> dict[str, int]:
        """For each queue, its tasks of these kinds that the next claim could take; counted no further than ``limit``.

        What was delayed until now may be missing until somebody claims.
        """


class Notes(Protocol):
    """What changes often and is not history: batched, no version, no event."""

    async def report(self, reports: Sequence[Report]) -> None:
        """Keep the latest progress per task. What carries a superseded token is dropped."""

    async def log(self, lines: Sequence[Line], *, keep: int) -> None:
        """Append, and drop the oldest lines of a job that has more than ``keep`` bytes.

        Lines of a job that is not there are dropped. Those of a superseded attempt are kept, under its number: what a
        lost worker had to say helps the person who looks for the reason, and nothing is decided by it.
        """

    async def sample(self, samples: Sequence[Sample], *, keep: int) -> None:
        """Append, and drop the oldest of a job that has more than ``keep``; none for a job that is not there."""

    async def progress(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]: ...

    async def lines(
        self, job_id: str, *, after: int = 0, limit: int = 1000, stage: str | None = None, newest: bool = False
    ) -> list[Line]:
        """The first ``limit`` lines after that number, or the newest of them; of all stages, or of one. In order."""

    async def samples(self, job_id: str) -> list[Sample]: ...


class Watch(Protocol):
    async def wait_for_change(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:
        """Return a new mark soon after anybody committed anything since ``mark``, or the same one after ``timeout``.

        A hint: it may return for nothing, so look again afterwards. ``is_working``: the caller carries out what this
        handle claims, and needs no wake-up for `is_own_work`.
        """

    async def changed_jobs(self, since: int | None) -> tuple[int, Collection[str] | None]:
        """A cursor, and the ids of the jobs with anything new since ``since``; None for "cannot say, look at all"."""


class Upkeep(Protocol):
    async def purgeable(self, limit: int) -> list[Job]:
        """Ended jobs whose purge time is over, and those whose purge was begun."""

    async def jobs_with_litter(self, limit: int) -> list[Job]:
        """Ended jobs that may have objects nothing refers to."""

    async def erase(self, job_id: str) -> None:
        """Delete a job marked as purging, with everything kept under its id, tokens and deliveries too.

        Others are not changed.
        """

    async def existing_ids(self, job_ids: Sequence[str]) -> set[str]:
        """Which of these ids have a job."""

    async def trim(self) -> None:
        """Drop what only serves watchers and is older than any of them waits for, counters whose window is over, and
        statistics past their time."""


class Records(Protocol):
    """Everything beside jobs: keys, sessions, schedules, webhooks, workers and so on. See `core/records.py`."""

    def now(self) -> float:
        """The store's clock, as far as this process knows it."""

    async def put(self, writes: Sequence[Put | Drop], *, quiet: bool = False) -> list[int]:
        """Make all of these writes or none, in order; the stamp of each record afterwards, 0 for a dropped one.

        Raises `Conflict` where a stamp, ``needs`` or ``leaseless`` does not hold, with ``kind`` and ``id``, and
        `JobNotFound` where a job is missing. Two writes of one record in one call see each other. ``quiet``: no
        watcher is woken.
        """

    async def fetch(self, kind: str, ids: Sequence[str]) -> list[Record | None]:
        """The records in the order asked for, None where there is none. One read for all."""

    async def scan(
        self,
        kind: str,
        index: str,
        *,
        after: str = "",
        before: str | None = None,
        limit: int = 50,
        newest: bool = False,
    ) -> list[Record]:
        """Records between two places in the index, both excluded; in order, or backwards for ``newest``.

        Reads no other records.
        """

    async def take(self, kind: str, lane: str, limit: int, seconds: float) -> list[Record]:
        """Those due in the lane by the store's clock, longest due first, each counted and put off by ``seconds``.

        Two takers never receive the same attempt. What a taker that died has not put or dropped is due again by
        itself; the earlier taker then finds another stamp.
        """

    async def append(self, log: str, entries: Sequence[LogEntry], *, keep: int, since: float = 0.0) -> None:
        """Add entries to the log, in order. Drop the oldest of each of their topics beyond about ``keep``, and the
        oldest of the log that are from before ``since``: only about a hundred more than were added, so that nothing
        waits long, and a clock that is wrong for once does little harm.
        """

    async def tail(self, log: str, *, topic: str = "", before: int | None = None, limit: int = 50) -> list[LogEntry]:
        """The newest entries numbered below ``before``, newest first; of the whole log, or of one topic."""


class Store(Jobs, Queue, Limits, Notes, Watch, Upkeep, Records, Counters, Failures, Statistics, Protocol):
    async def check(self) -> list[Finding]:
        """The store's own settings, each with what it means for the promise."""

    async def close(self) -> None: ...
