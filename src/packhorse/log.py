"""The sentences packhorse writes into its own log, in one place, each with the facts that go with it.

As text they are for people. As JSON each is a line with ``time``, ``level``, ``event``, ``message``, ``trace_id``,
``job_id`` and its facts. A secret is never a fact: no header, no query, no body is written down.
"""

from __future__ import annotations

import logging
import random
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

import msgspec

from packhorse.errors import PackhorseError

logger = logging.getLogger("packhorse")

TEXT = "%(asctime)s %(levelname)s %(message)s"
FORMATS = ("text", "json")
TOLD = 500
"""Characters of what a stage says went wrong: the job itself has all of it."""
USUAL = frozenset({"finish", "later", "hand_back"})
"""How an attempt may end without anybody having to look."""
LEVELS = ("debug", "info", "warning", "error")

_luck = random.Random()  # noqa: S311 (names, not secrets)
_trace: ContextVar[str] = ContextVar("packhorse_trace", default="")


def trace_id() -> str:
    """Of the request or the job that is being worked on here, empty if it is neither."""
    return _trace.get()


def new_trace() -> str:
    """No secret, so no call to the system for each: that costs more than all the rest of a small request."""
    return f"{_luck.getrandbits(128) | 1:032x}"


def new_span() -> str:
    return f"{_luck.getrandbits(64) | 1:016x}"


def trace(trace_id: str) -> None:
    """All that this task says from now on is about that."""
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
    """Write to stderr from now on: what packhorse says from that level, and what libraries say from info."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=INFO, handlers=[handler])
    logger.setLevel(level.upper())


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event, trace, facts = getattr(record, "packhorse", ("log", "", {"logger": record.name}))
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": event,
            "message": record.getMessage(),
            "trace_id": trace or None,
            "job_id": None,
            **facts,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


def _say(level: int, event: str, sentence: str, error: BaseException | None = None, **facts: Any) -> None:
    """``error`` is for those whose traceback helps."""
    if logger.isEnabledFor(level):
        extra = {"packhorse": (event, trace_id(), facts)}
        logger.log(level, sentence.format_map(facts), exc_info=error, extra=extra)


class Log:
    """One method per sentence. What a stage prints is the job's log and does not come here."""

    def worker_started(self, worker: str, queues: dict[str, int]) -> None:
        slots = ", ".join(f"{name}={count}" for name, count in queues.items())
        _say(INFO, "worker_started", "worker {worker} serves {slots}", worker=worker, slots=slots)

    def worker_drains(self, running: int, seconds: float) -> None:
        sentence = "no more claims; waiting up to {seconds:.0f} s for {running} running stages"
        _say(INFO, "worker_drains", sentence, running=running, seconds=seconds)

    def worker_stopped(self) -> None:
        _say(INFO, "worker_stopped", "worker stopped")

    def app_broken(self, message: str) -> None:
        sentence = "THE APP CANNOT BE LOADED ANY MORE, and new stages wait until it can: {reason}"
        _say(ERROR, "app_broken", sentence, reason=message)

    def no_process(self, message: str) -> None:
        _say(ERROR, "no_process", "{reason}, and new stages wait until that is over", reason=message)

    def app_mended(self, app: str) -> None:
        _say(INFO, "app_mended", "{app} can be loaded again", app=app)

    def attempt_began(self, lease: Any, attempt: int) -> None:
        if logger.isEnabledFor(DEBUG):  # asked before the facts are put together: this is said of every attempt
            _say(DEBUG, "attempt_began", "attempt {attempt} at {stage} of {job_id}", **_of(lease), attempt=attempt)

    def attempt_ended(self, lease: Any, outcome: str, seconds: float, why: str) -> None:
        sentence = "{stage} of {job_id} ended after {seconds:.3f} s: {outcome}" + (", {reason}" if why else "")
        level = DEBUG if outcome in USUAL else WARNING
        if logger.isEnabledFor(level):
            facts: dict[str, Any] = {**_of(lease), "outcome": outcome, "seconds": seconds}
            _say(level, "attempt_ended", sentence, **facts | ({"reason": why[:TOLD]} if why else {}))

    def attempt_broke(self, lease: Any, error: Exception) -> None:
        _say(ERROR, "attempt_broke", "attempt at {stage} of {job_id} broke: {reason}", error, **_of(lease, error))

    def attempt_came_late(self, lease: Any) -> None:
        sentence = "{stage} of {job_id} was taken over; this attempt's work is dropped"
        _say(WARNING, "attempt_came_late", sentence, **_of(lease))

    def worker_lost(self, worker: str, stages: int) -> None:
        sentence = "worker {worker} is dead; {stages} stages it held are free again"
        _say(WARNING, "worker_lost", sentence, worker=worker, stages=stages)

    def entry_dropped(self, job_id: str, stage: str, error: Exception) -> None:
        sentence = "{stage} of {job_id} cannot be started and was taken from its queue: {reason}"
        _say(ERROR, "entry_dropped", sentence, job_id=job_id, stage=stage, reason=str(error))

    def job_unreadable(self, job_id: str, error: Exception) -> None:
        sentence = "job {job_id} is left out of a list, because it cannot be read: {reason}"
        _say(ERROR, "job_unreadable", sentence, job_id=job_id, reason=str(error))

    def record_unreadable(self, what: str, name: str, reason: str) -> None:
        sentence = "{what} {name} is left out until it is put right: {reason}"
        _say(ERROR, "record_unreadable", sentence, what=what, name=name, reason=reason)

    def lease_overdue(self, job_id: str, stage: str) -> None:
        sentence = "the lease of {stage} of {job_id} ran out; the stage is free again"
        _say(WARNING, "lease_overdue", sentence, job_id=job_id, stage=stage)

    def clock_jumped(self, seconds: float) -> None:
        sentence = "the clock jumped by {seconds:.1f} s; no lease is given up for one lease"
        _say(WARNING, "clock_jumped", sentence, seconds=seconds)

    def store_away(self, error: Exception) -> None:
        _say(WARNING, "store_away", "the store does not answer ({reason}); running stages go on", reason=str(error))

    def store_back(self) -> None:
        _say(INFO, "store_back", "the store answers again")

    def duty_failed(self, duty: str, error: Exception) -> None:
        """With the traceback of what nobody has thought of."""
        sentence = "{duty} failed and will be tried again: {reason}"
        reason = f"{error} {error.hint}".strip() if isinstance(error, PackhorseError) else repr(error)
        odd = None if isinstance(error, PackhorseError | OSError) else error
        _say(ERROR, "duty_failed", sentence, odd, duty=duty, reason=reason)

    def webhooks_unsigned(self, count: int) -> None:
        sentence = "{count} webhooks are told nothing by this worker: it has no PACKHORSE_SECRET_KEY to sign with"
        _say(ERROR, "webhooks_unsigned", sentence, count=count)

    def ticks_missed(self, schedule: str, count: int, reason: str) -> None:
        sentence = "schedule {schedule} has missed {count} ticks: {reason}"
        _say(WARNING, "ticks_missed", sentence, schedule=schedule, count=count, reason=reason)

    def tick_skipped(self, schedule: str, reason: str) -> None:
        _say(INFO, "tick_skipped", "schedule {schedule} skips a tick: {reason}", schedule=schedule, reason=reason)

    def webhook_given_up(self, delivery: str, error: str) -> None:
        sentence = "webhook message {delivery} is given up; the last error was {reason}"
        _say(ERROR, "webhook_given_up", sentence, delivery=delivery, reason=error)

    def alert_given_up(self, alerts: int, reason: str) -> None:
        sentence = "nobody was told of {alerts} new kinds of failures: the alert command {reason}"
        _say(ERROR, "alert_given_up", sentence, alerts=alerts, reason=reason)

    def webhook_ended(self, webhook: str, reason: str) -> None:
        _say(ERROR, "webhook_ended", "webhook {webhook} has ended: {reason}", webhook=webhook, reason=reason)

    def serving(self, host: str, port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        _say(INFO, "serving", "serving http://{host}:{port}", host=shown, port=port)

    @property
    def tells_requests(self) -> bool:
        """Whether a line per request is written at all: its facts are not gathered for nothing."""
        return logger.isEnabledFor(DEBUG)

    def request_answered(self, method: str, path: str, status: int, seconds: float, facts: dict[str, Any]) -> None:
        sentence = "{method} {path} {status} {seconds:.3f} s"
        _say(
            DEBUG,
            "request_answered",
            sentence,
            method=method,
            path=_line(path),
            status=status,
            seconds=seconds,
            **facts,
        )

    def request_failed(self, method: str, path: str, error: Exception) -> None:
        sentence = "{method} {path} failed: {reason}"
        _say(ERROR, "request_failed", sentence, error, method=method, path=_line(path), reason=repr(error))

    def request_unserved(self, method: str, path: str, error: Exception) -> None:
        sentence = "{method} {path} could not be served: {reason}"
        _say(WARNING, "request_unserved", sentence, method=method, path=_line(path), reason=str(error))

    def stream_cut(self, path: str, error: BaseException) -> None:
        sentence = "{path} was cut while it was being sent: {reason}"
        _say(WARNING, "stream_cut", sentence, path=_line(path), reason=repr(error))

    def requests_cut(self, count: int) -> None:
        _say(WARNING, "requests_cut", "{count} requests were still open and are cut", count=count)

    def no_keys(self) -> None:
        sentence = "nobody has a key yet, so nobody is served; make one with: packhorse keys create --scope admin"
        _say(WARNING, "no_keys", sentence)

    def promote_again(self, address: str, reason: str) -> None:
        sentence = "{address} did not take a copy ({reason}); trying again"
        _say(WARNING, "copy_retried", sentence, address=address, reason=reason)

    def audit_lost(self, count: int) -> None:
        _say(ERROR, "audit_lost", "{count} entries of the audit could not be kept", count=count)

    def refund_lost(self, key_id: str, error: Exception) -> None:
        sentence = "what a download of {key_id} did not use counts until its window is over: {reason}"
        _say(WARNING, "refund_lost", sentence, key_id=key_id, reason=str(error))

    def printed(self, line: str) -> None:
        _say(INFO, "printed", "printed outside any stage: {line}", line=line)


def _line(path: str) -> str:
    """Whoever asks for a path with a line break in it writes no line of ours."""
    return path if path.isprintable() else ascii(path)


def _of(lease: Any, error: Exception | None = None) -> dict[str, Any]:
    found = {"job_id": lease.job_id, "stage": lease.task.stage}
    return found if error is None else {**found, "reason": repr(error)}


log = Log()
