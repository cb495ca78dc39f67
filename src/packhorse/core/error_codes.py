"""Failure codes that packhorse sets, each with its meaning. A stage may set its own."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any

EXCEPTION, INVALID, PERMANENT = "EXCEPTION", "INVALID", "PERMANENT"
TIMEOUT, CALL_TIMEOUT, STALLED = "TIMEOUT", "CALL_TIMEOUT", "STALLED"
DEADLINE, ORPHANED, RUN_TIMEOUT = "DEADLINE", "ORPHANED", "RUN_TIMEOUT"
OUT_OF_MEMORY, CRASHED, WORKER_LOST = "OUT_OF_MEMORY", "CRASHED", "WORKER_LOST"
CORRUPT, BLOB_UNAVAILABLE, INTERNAL, SECRET_UNREADABLE = "CORRUPT", "BLOB_UNAVAILABLE", "INTERNAL", "SECRET_UNREADABLE"
ARGUMENTS_TOO_LARGE, INVALID_RESULT = "ARGUMENTS_TOO_LARGE", "INVALID_RESULT"
NOT_A_LIST, TOO_MANY_ELEMENTS, TOO_MANY_ARTIFACTS = "NOT_A_LIST", "TOO_MANY_ELEMENTS", "TOO_MANY_ARTIFACTS"

CODES: Mapping[str, str] = {
    EXCEPTION: "The stage raised an exception that has no code of its own.",
    "HTTP_500": "A server that the stage called answered with status 500. Other statuses have codes like HTTP_404.",
    TIMEOUT: "The stage took longer than its timeout. It is not retried, unless its `retry_on` says so.",
    CALL_TIMEOUT: "The stage raised `TimeoutError`: something that it called or waited for took too long.",
    STALLED: "The stage reported no progress for longer than its `stall`.",
    DEADLINE: "The run did not end before its deadline.",
    ORPHANED: "No worker started the run in time. See the option `pending`.",
    RUN_TIMEOUT: "The run took longer than its `run_timeout`, counted from its first start. It is not retried.",
    OUT_OF_MEMORY: "The stage exceeded its memory limit, and is not retried, unless its `retry_on` says so. "
    "Without a limit: memory could not be allocated (`MemoryError`), and it is retried.",
    CRASHED: "The process of the stage died.",
    WORKER_LOST: "The worker died or went silent while it ran the stage.",
    PERMANENT: "The stage raised `Permanent` without a code.",
    INVALID: "The worker found the parameters not valid, for example a choice it does not have.",
    INVALID_RESULT: "The result of the stage cannot be stored.",
    ARGUMENTS_TOO_LARGE: "The arguments of the stage are too large to pass to its process.",
    NOT_A_LIST: "A stage runs once per element of another stage's result, and that result is not a list.",
    TOO_MANY_ELEMENTS: "A stage returned more elements than the next stage allows.",
    TOO_MANY_ARTIFACTS: "The stage published more files than `PACKHORSE_ARTIFACTS_LIMIT` allows.",
    BLOB_UNAVAILABLE: "The object store could not be read or written.",
    SECRET_UNREADABLE: "A secret parameter cannot be decrypted. Use the same `PACKHORSE_SECRET_KEY` everywhere.",
    INTERNAL: "An internal error of packhorse ended the attempt.",
    CORRUPT: "The stored record of the job cannot be read.",
}

CODE_PATTERN = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
"""A code that an exception may carry: capitals, digits and underscores."""


def over_memory(limit: int) -> str:
    return f"The stage needed more than its {limit >> 20} MiB of memory."


def too_many_artifacts(limit: int) -> str:
    return f"The stage may publish at most {limit} files. Put them into an archive, or raise PACKHORSE_ARTIFACTS_LIMIT."


def code_of(error: BaseException) -> str:
    """The stable code for an exception, independent of its message."""
    own = _member(error, "code")
    if isinstance(own, str) and not isinstance(error, SystemExit) and CODE_PATTERN.fullmatch(own):
        return own
    if (status := _status(error)) is not None:
        return f"HTTP_{status}"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return OUT_OF_MEMORY
    return CALL_TIMEOUT if isinstance(error, TimeoutError) else EXCEPTION


def _status(error: BaseException) -> int | None:
    """The HTTP status that common client libraries attach to their exceptions."""
    for found in (_member(error, "response"), error):
        for name in ("status_code", "status"):
            status = _member(found, name)
            if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
                return status
    return None


def _member(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:  # broad: a property in the user's code may raise anything
        return None
