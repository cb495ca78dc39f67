"""All messages that packhorse writes to its own log, each with its facts.

As JSON, each is a line with ``time``, ``level``, ``event``, ``message``, ``trace_id``, ``job_id`` and the facts. Every
line has a trace. A fact is never a header, a query or a body: those may contain secrets.
"""

from __future__ import annotations

import logging
import random
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

import msgspec

from packhorse.errors import PackhorseError
from packhorse.plurals import counted, plural

logger = logging.getLogger("packhorse")

TEXT = "%(asctime)s %(levelname)s %(message)s"
CONTINUED = "\n  | "
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""As in `core/text.py`, which this module must not import."""
FORMATS = ("text", "json")
MAX_REASON = 500  # Characters of a stage's error message in the log. The job has all of it.
USUAL = frozenset(
    {"finish", "skip", "later", "hand_back"}
)  # outcomes of an attempt that are logged at debug level only
OUTCOMES = {
    "finish": "completed",
    "skip": "was skipped",
    "later": "will be started again later,",
    "hand_back": "was returned to the queue",
    "fail": "failed",
    "time_out": "timed out",
    "stall": "stalled",
    "lost": "was lost",
}
"""How an attempt ended, in words."""
LEVELS = ("debug", "info", "warning", "error")

_luck = random.Random()  # noqa: S311 (names, not secrets)
_trace: ContextVar[str] = ContextVar("packhorse_trace", default="")


def trace_id() -> str:
    """The trace of the current request, job or background step; empty outside of them."""
    return _trace.get()


def new_trace() -> str:
    """From a fast generator: it is no secret, and a system call would cost more than a small request."""
    return f"{_luck.getrandbits(128) | 1:032x}"


PROCESS_TRACE = new_trace()
"""On lines outside of requests, jobs and background steps: it shows which lines are of one process."""


def new_span() -> str:
    return f"{_luck.getrandbits(64) | 1:016x}"


def trace(trace_id: str) -> None:
    """Set the trace of everything that the current asyncio task logs from now on."""
    _trace.set(trace_id)


class traced:
    __slots__ = ("_before", "_trace_id")

    def __init__(self, trace_id: str) -> None:
        self._trace_id = trace_id

    def __enter__(self) -> None:
        self._before = _trace.set(self._trace_id)

    def __exit__(self, *_: object) -> None:
        _trace.reset(self._before)


def write(format: str, level: str) -> None:
    """Log to stderr: packhorse from the given level, libraries from info."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines(TEXT))
    logging.basicConfig(level=INFO, handlers=[handler])
    logger.setLevel(level.upper())


def escape(text: str, keep: str = "") -> str:
    """Text of users and stages for a terminal or a log: control characters, except those to keep, as ``\\x1b``."""
    if text.isprintable():
        return text
    return CONTROLS.sub(
        lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text
    )


class TextLines(logging.Formatter):
    """What is behind the first line of a message is marked, so that no text can pass for a message of its own."""

    def format(self, record: logging.LogRecord) -> str:
        return escape(super().format(record), keep="\n\t").replace("\n", CONTINUED)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event, trace, facts = getattr(record, "packhorse", ("log", "", {"logger": record.name}))
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": event,
            "message": record.getMessage(),
            "trace_id": trace or trace_id() or PROCESS_TRACE,
            "job_id": None,
            **facts,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


def _say(level: int, event: str, sentence: str, error: BaseException | None = None, **facts: Any) -> None:
    """Pass ``error`` to log its traceback."""
    if logger.isEnabledFor(level):
        extra = {"packhorse": (event, trace_id(), facts)}
        logger.log(level, sentence.format_map(facts), exc_info=error, extra=extra)


class Log:
    """One method per message. The output of stages goes to the log of their job instead."""

    def worker_started(self, worker: str, queues: dict[str, int], store: str) -> None:
        """``store``: its URL without secrets."""
        slots = ", ".join(f"{name}={count}" for name, count in queues.items())
        sentence = "worker {worker} serves {slots} from store {store}"
        _say(INFO, "worker_started", sentence, worker=worker, slots=slots, store=store)

    def app_sql_ran(self, package: str) -> None:
        _say(INFO, "app_sql_ran", "ran the SQL file of {package}", package=package)

    def app_sql_failed(self, package: str, reason: str) -> None:
        sentence = "views or indexes of {package} are missing or old: {reason}. "
        sentence += "Run a worker once with a role that may create them"
        _say(WARNING, "app_sql_failed", sentence, package=package, reason=reason)

    def redis_view_refused(self, view: str, prefix: str, owner: str, command: str) -> None:
        """``command``: what makes this deployment the owner."""
        sentence = "not writing the Redis view {view}: the keys with the prefix {prefix!r} belong to {owner}. "
        sentence += "Choose another prefix in PACKHORSE_REDIS_VIEWS or, if nobody else writes these keys, run {command}"
        _say(ERROR, "redis_view_refused", sentence, view=view, prefix=prefix, owner=owner, command=command)

    def script_refused(self, package: str, reason: str) -> None:
        sentence = "refused the SQL file of {package}: {reason}"
        _say(WARNING, "script_refused", sentence, package=package, reason=reason)

    def worker_drains(self, running: int, seconds: float) -> None:
        waiting = f", waiting up to {{seconds:.0f}} s for {counted(running, 'running stage')}" if running else ""
        sentence = f"stopping: no new tasks{waiting}"
        _say(INFO, "worker_drains", sentence, running=running, seconds=seconds)

    def worker_stopped(self) -> None:
        _say(INFO, "worker_stopped", "worker stopped")

    def app_broken(self, message: str) -> None:
        sentence = "the app cannot be loaded; new stages wait until it can be: {reason}"
        _say(ERROR, "app_broken", sentence, reason=message)

    def no_process(self, message: str) -> None:
        _say(ERROR, "no_process", "{reason}; new stages wait until a process can be started", reason=message)

    def process_stuck(self, pid: int) -> None:
        sentence = (
            "process {pid} does not end after SIGKILL: it hangs in the kernel, as on a dead disk. Its slot is lost "
            "until it ends. Check its disks and drivers (cat /proc/{pid}/stack) or restart the machine"
        )
        _say(ERROR, "process_stuck", sentence, pid=pid)

    def app_mended(self, app: str) -> None:
        _say(INFO, "app_mended", "{app} can be loaded again", app=app)

    def attempt_began(self, lease: Any, attempt: int) -> None:
        if logger.isEnabledFor(DEBUG):  # checked first: collecting the facts of every attempt costs time
            _say(DEBUG, "attempt_began", "attempt {attempt} at {stage} of {job_id}", **_of(lease), attempt=attempt)

    def attempt_ended(self, lease: Any, outcome: str, seconds: float, why: str) -> None:
        ended = OUTCOMES.get(outcome, "ended with {outcome}")
        sentence = f"{{stage}} of {{job_id}} {ended} after {{seconds:.3f}} s{': {reason}' if why else ''}"
        level = DEBUG if outcome in USUAL else WARNING
        if logger.isEnabledFor(level):
            facts: dict[str, Any] = {**_of(lease), "outcome": outcome, "seconds": seconds}
            _say(level, "attempt_ended", sentence, **facts | ({"reason": why[:MAX_REASON]} if why else {}))

    def attempt_broke(self, lease: Any, error: Exception) -> None:
        sentence = "attempt at {stage} of {job_id} failed inside packhorse: {reason}"
        _say(ERROR, "attempt_broke", sentence, error, **_of(lease, error))

    def attempt_came_late(self, lease: Any) -> None:
        sentence = "another attempt has taken over {stage} of {job_id}; the result of this one is dropped"
        _say(WARNING, "attempt_came_late", sentence, **_of(lease))

    def worker_lost(self, worker: str, stages: int) -> None:
        sentence = f"worker {{worker}} died; {counted(stages, 'running stage')} returned to the queue"
        _say(WARNING, "worker_lost", sentence, worker=worker, stages=stages)

    def entry_dropped(self, job_id: str, stage: str, error: Exception) -> None:
        sentence = "{stage} of {job_id} cannot be started and was removed from its queue: {reason}"
        _say(ERROR, "entry_dropped", sentence, job_id=job_id, stage=stage, reason=str(error))

    def job_unreadable(self, job_id: str, error: Exception) -> None:
        sentence = "job {job_id} cannot be read and is left out of a list: {reason}"
        _say(ERROR, "job_unreadable", sentence, job_id=job_id, reason=str(error))

    def record_unreadable(self, what: str, name: str, reason: str) -> None:
        sentence = "{what} {name} cannot be read and is skipped: {reason}"
        _say(ERROR, "record_unreadable", sentence, what=what, name=name, reason=reason)

    def lease_overdue(self, job_id: str, stage: str) -> None:
        sentence = "the lease of {stage} of {job_id} expired; the stage returned to the queue"
        _say(WARNING, "lease_overdue", sentence, job_id=job_id, stage=stage)

    def lease_repaired(self, job_id: str) -> None:
        sentence = "the leases of {job_id} did not match its record; that was repaired"
        _say(ERROR, "lease_repaired", sentence, job_id=job_id)

    def delay_restarted(self, job_id: str, stage: str) -> None:
        sentence = "{stage} of {job_id} was queued by a clock that was ahead; its delay begins now"
        _say(WARNING, "delay_restarted", sentence, job_id=job_id, stage=stage)

    def leases_shortened(self, count: int) -> None:
        leases, they = counted(count, "lease was", "leases were"), plural(count, "it ends", "they end")
        sentence = f"{leases} granted by a clock that was ahead; {they} in one lease period unless renewed"
        _say(WARNING, "leases_shortened", sentence, count=count)

    def orphan_handed_back(self, job_id: str, stage: str) -> None:
        sentence = "a claim of {stage} of {job_id} was made after its answer was lost; it was handed back"
        _say(WARNING, "orphan_handed_back", sentence, job_id=job_id, stage=stage)

    def clock_jumped(self, seconds: float) -> None:
        sentence = (
            "the clock jumped by {seconds:.1f} s; for some lease periods, no lease is revoked and nothing is deleted"
        )
        _say(WARNING, "clock_jumped", sentence, seconds=seconds)

    def store_away(self, error: Exception) -> None:
        _say(WARNING, "store_away", "the store does not answer ({reason}); running stages continue", reason=str(error))

    def deployment_unchecked(self) -> None:
        sentence = (
            "the object store does not answer; whether it belongs to this store is checked before files are deleted"
        )
        _say(WARNING, "deployment_unchecked", sentence)

    def deployment_unmarked(self) -> None:
        sentence = "the files in the object store carry no mark: none is deleted until you run packhorse adopt"
        _say(WARNING, "deployment_unmarked", sentence)

    def store_back(self) -> None:
        _say(INFO, "store_back", "the store answers again")

    def background_failed(self, work: str, error: Exception) -> None:
        """With a traceback if the error is unexpected."""
        sentence = "{work} failed and will be retried: {reason}"
        reason = f"{error} {error.hint}".strip() if isinstance(error, PackhorseError) else repr(error)
        odd = None if isinstance(error, PackhorseError | OSError) else error
        _say(ERROR, "background_failed", sentence, odd, work=work, reason=reason)

    def webhooks_unsigned(self, count: int) -> None:
        sentence = f"skipping {counted(count, 'webhook')}: PACKHORSE_SECRET_KEY, which signs messages, is not set"
        _say(ERROR, "webhooks_unsigned", sentence, count=count)

    def ticks_missed(self, schedule: str, count: int, reason: str) -> None:
        sentence = f"schedule {{schedule}} missed {counted(count, 'tick')}: {{reason}}"
        _say(WARNING, "ticks_missed", sentence, schedule=schedule, count=count, reason=reason)

    def tick_skipped(self, schedule: str, reason: str) -> None:
        _say(INFO, "tick_skipped", "schedule {schedule} skipped a tick: {reason}", schedule=schedule, reason=reason)

    def webhook_given_up(self, delivery: str, error: str) -> None:
        sentence = "giving up on webhook message {delivery}; the last error was {reason}"
        _say(ERROR, "webhook_given_up", sentence, delivery=delivery, reason=error)

    def alert_given_up(self, alerts: int, reason: str) -> None:
        sentence = f"giving up on {counted(alerts, 'alert')} about new kinds of failures: the alert command {{reason}}"
        _say(ERROR, "alert_given_up", sentence, alerts=alerts, reason=reason)

    def webhook_ended(self, webhook: str, reason: str) -> None:
        _say(ERROR, "webhook_ended", "webhook {webhook} was switched off: {reason}", webhook=webhook, reason=reason)

    def serving(self, host: str, port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        _say(INFO, "serving", "serving http://{host}:{port}", host=shown, port=port)

    @property
    def tells_requests(self) -> bool:
        """Whether requests are logged. If not, their facts need not be collected."""
        return logger.isEnabledFor(DEBUG)

    def request_answered(self, method: str, path: str, status: int, seconds: float, facts: dict[str, Any]) -> None:
        facts = {"method": method, "path": _line(path), "status": status, "seconds": seconds, **facts}
        _say(DEBUG, "request_answered", "{method} {path} {status} {seconds:.3f} s", **facts)

    def request_failed(self, method: str, path: str, error: Exception) -> None:
        sentence = "{method} {path} failed: {reason}"
        _say(ERROR, "request_failed", sentence, error, method=method, path=_line(path), reason=repr(error))

    def request_unserved(self, method: str, path: str, error: Exception) -> None:
        sentence = "{method} {path} could not be served: {reason}"
        _say(WARNING, "request_unserved", sentence, method=method, path=_line(path), reason=str(error))

    def stream_cut(self, path: str, error: BaseException) -> None:
        sentence = "sending {path} was interrupted: {reason}"
        _say(WARNING, "stream_cut", sentence, path=_line(path), reason=repr(error))

    def requests_cut(self, count: int) -> None:
        _say(WARNING, "requests_cut", f"closing {counted(count, 'open request')}", count=count)

    def no_keys(self) -> None:
        sentence = "there is no API key, so every request is refused; create one: packhorse keys create --scope admin"
        _say(WARNING, "no_keys", sentence)

    def promote_again(self, address: str, reason: str) -> None:
        sentence = "{address} did not accept a copy ({reason}); retrying"
        _say(WARNING, "copy_retried", sentence, address=address, reason=reason)

    def audit_lost(self, count: int) -> None:
        entries = counted(count, "audit entry", "audit entries")
        _say(ERROR, "audit_lost", f"{entries} could not be stored", count=count)

    def refund_lost(self, key_id: str, error: Exception) -> None:
        sentence = "the unused quota of a download by {key_id} is returned only when its window ends: {reason}"
        _say(WARNING, "refund_lost", sentence, key_id=key_id, reason=str(error))

    def printed(self, line: str) -> None:
        _say(INFO, "printed", "printed outside any stage: {line}", line=line)


def _line(path: str) -> str:
    """Escaped, so that a path with a line break cannot forge a log line."""
    return path if path.isprintable() else ascii(path)


def _of(lease: Any, error: Exception | None = None) -> dict[str, Any]:
    found = {"job_id": lease.job_id, "stage": lease.task.stage}
    return found if error is None else {**found, "reason": repr(error)}


log = Log()
