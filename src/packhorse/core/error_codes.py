"""The codes of failures that packhorse itself gives, each with its meaning. A stage may give others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

EXCEPTION, INVALID, PERMANENT = "EXCEPTION", "INVALID", "PERMANENT"
TIMEOUT, STALLED, DEADLINE, ORPHANED = "TIMEOUT", "STALLED", "DEADLINE", "ORPHANED"
OUT_OF_MEMORY, CRASHED, WORKER_LOST = "OUT_OF_MEMORY", "CRASHED", "WORKER_LOST"
CORRUPT, BLOB_UNAVAILABLE, INTERNAL, SECRET_UNREADABLE = "CORRUPT", "BLOB_UNAVAILABLE", "INTERNAL", "SECRET_UNREADABLE"
ARGUMENTS_TOO_LARGE, INVALID_RESULT = "ARGUMENTS_TOO_LARGE", "INVALID_RESULT"
NOT_A_LIST, TOO_MANY_ELEMENTS = "NOT_A_LIST", "TOO_MANY_ELEMENTS"

CODES: Mapping[str, str] = {
    EXCEPTION: "The stage raised an exception that has no code of its own.",
    "HTTP_500": "A server that the stage asked answered 500; the same for every other status, as HTTP_404.",
    TIMEOUT: "The stage took longer than its timeout, or gave up waiting for something (`TimeoutError`).",
    STALLED: "The stage reported no progress for longer than its `stall`.",
    DEADLINE: "The run did not end before its deadline.",
    ORPHANED: "No worker started any stage of the run in time: see `pending`.",
    OUT_OF_MEMORY: "The stage used more memory than its limit, or could not get any (`MemoryError`).",
    CRASHED: "The process of the stage died.",
    WORKER_LOST: "The worker died or went silent while it ran the stage.",
    PERMANENT: "The stage raised `Permanent` without a code.",
    INVALID: "The parameters are not valid, as only the worker could tell.",
    INVALID_RESULT: "What the stage returned cannot be kept.",
    ARGUMENTS_TOO_LARGE: "What the stage needs is too large to be given to it.",
    NOT_A_LIST: "A stage runs once per element of what another returned, and that was no list.",
    TOO_MANY_ELEMENTS: "A stage returned more elements than the one that runs over them takes.",
    BLOB_UNAVAILABLE: "The object store could not be read or written.",
    SECRET_UNREADABLE: "A secret parameter cannot be decrypted here: is `PACKHORSE_SECRET_KEY` another one?",
    INTERNAL: "packhorse itself stumbled over the attempt.",
    CORRUPT: "What is stored about the job cannot be read.",
}

CODE_PATTERN = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
"""What an exception may carry as its code: a word in capitals."""


def code_of(error: BaseException) -> str:
    """A word that stays the same for what went wrong, whatever the message says this time."""
    own = _member(error, "code")
    if isinstance(own, str) and not isinstance(error, SystemExit) and CODE_PATTERN.fullmatch(own):
        return own
    if (status := _status(error)) is not None:
        return f"HTTP_{status}"
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    return TIMEOUT if isinstance(error, TimeoutError) else EXCEPTION


def _status(error: BaseException) -> int | None:
    """The status of an answer, as the usual libraries attach it to what they raise."""
    for found in (_member(error, "response"), error):
        for name in ("status_code", "status"):
            status = _member(found, name)
            if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
                return status
    return None


def _member(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:  # broad: a property of the user's own may raise anything
        return None
