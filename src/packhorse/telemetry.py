"""The sentences packhorse writes into its own log, in one place, each with the facts that go with it."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("packhorse")


class Log:
    """One method per sentence. What a stage prints is the job's log and does not come here."""

    def worker_started(self, worker: str, queues: dict[str, int]) -> None:
        slots = ", ".join(f"{name}={count}" for name, count in queues.items())
        logger.info("worker %s serves %s", worker, slots)

    def worker_drains(self, running: int, seconds: float) -> None:
        logger.info("no more claims; waiting up to %.0f s for %d running stages", seconds, running)

    def worker_stopped(self) -> None:
        logger.info("worker stopped")

    def app_broken(self, message: str) -> None:
        logger.error("THE APP CANNOT BE LOADED ANY MORE, and new stages wait until it can: %s", message)

    def no_process(self, message: str) -> None:
        logger.error("%s, and new stages wait until that is over", message)

    def app_mended(self, app: str) -> None:
        logger.info("%s can be loaded again", app)

    def attempt_broke(self, lease: Any, error: Exception) -> None:
        logger.error("attempt at %s of %s broke: %r", lease.task.stage, lease.job_id, error, exc_info=error)

    def attempt_came_late(self, lease: Any) -> None:
        logger.warning("%s of %s was taken over; this attempt's work is dropped", lease.task.stage, lease.job_id)

    def attempt_stopped(self, lease: Any, why: str) -> None:
        logger.info("%s of %s is ended: %s", lease.task.stage, lease.job_id, why)

    def worker_lost(self, worker: str, stages: int) -> None:
        logger.warning("worker %s is dead; %d stages it held are free again", worker, stages)

    def entry_dropped(self, job_id: str, stage: str, error: Exception) -> None:
        logger.error("%s of %s cannot be started and was taken from its queue: %s", stage, job_id, error)

    def job_unreadable(self, job_id: str, error: Exception) -> None:
        logger.error("job %s is left out of a list, because it cannot be read: %s", job_id, error)

    def lease_overdue(self, job_id: str, stage: str) -> None:
        logger.warning("the lease of %s of %s ran out; the stage is free again", stage, job_id)

    def clock_jumped(self, seconds: float) -> None:
        logger.warning("the clock jumped by %.1f s; no lease is given up for one lease", seconds)

    def store_away(self, error: Exception) -> None:
        logger.warning("the store does not answer (%s); running stages go on", error)

    def store_back(self) -> None:
        logger.info("the store answers again")

    def duty_failed(self, duty: str, error: Exception) -> None:
        logger.error("%s failed and will be tried again: %r", duty, error)

    def serving(self, host: str, port: int) -> None:
        logger.info("serving http://%s:%d", f"[{host}]" if ":" in host else host, port)

    def request_failed(self, method: str, path: str, error: Exception) -> None:
        logger.error("%s %s failed: %r", method, path, error, exc_info=error)

    def request_unserved(self, method: str, path: str, error: Exception) -> None:
        logger.warning("%s %s could not be served: %s", method, path, error)

    def stream_cut(self, path: str, error: BaseException) -> None:
        logger.warning("%s was cut while it was being sent: %r", path, error)

    def requests_cut(self, count: int) -> None:
        logger.warning("%d requests were still open and are cut", count)

    def promote_again(self, address: str, reason: str) -> None:
        logger.warning("%s did not take a copy (%s); trying again", address, reason)

    def audit_lost(self, count: int) -> None:
        logger.error("%d entries of the audit could not be kept", count)

    def refund_lost(self, key_id: str, error: Exception) -> None:
        logger.warning("what a download of %s did not use counts until its window is over: %s", key_id, error)

    def printed(self, line: str) -> None:
        logger.info("printed outside any stage: %s", line)


log = Log()
