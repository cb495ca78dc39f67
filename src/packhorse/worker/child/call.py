"""One call of a stage: decode its arguments, run it, and report how it ended."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packhorse.core import error_codes, json
from packhorse.define.files import File
from packhorse.define.pipelines import Pipeline
from packhorse.define.stages import Failed, Later, Permanent, Skip, Stage
from packhorse.define.values import encode_result
from packhorse.errors import InvalidInput
from packhorse.worker.child import messages
from packhorse.worker.child.context import ChildContext
from packhorse.worker.child.memory import says_refused
from packhorse.worker.child.messages import (
    Document,
    Postponed,
    Raised,
    Returned,
    Run,
    Skipped,
    to_text,
)

MESSAGE = 2000
"""Characters of an error's message that are kept."""
DETAIL = 8000
"""Characters of a traceback that are kept, from its end."""

Outcome = messages.Outcome
Code = tuple[Pipeline[Any], Stage[..., Any]]


class Stopped(BaseException):
    """Raised inside a stage when its process is asked to end, so that ``finally`` blocks run."""


def find_code(kinds: Mapping[str, Code], run: Run) -> Code:
    """The code to run. A child loads what is on disk now, which may have changed since its worker looked."""
    if run.kind not in kinds:
        raise LookupError(f"The app has no stage {run.kind} any more: its code has changed since the worker started.")
    return kinds[run.kind]


def bind_stage(pipeline: Pipeline[Any], stage: Stage[..., Any], run: Run, context: ChildContext) -> Callable[[], Any]:
    """The stage as a call without arguments. What does not fit its types is INVALID and never retried."""
    params = pipeline.schema.decode(run.parameters.value, _files(run.parameters), is_worker=True)
    given = {
        each.parameter: None if each.is_skipped else [_argument(document) for document in each.values]
        for each in run.arguments
    }
    arguments = stage.arguments(given)
    return lambda: stage.function(context, params, **arguments)


def end_with(stage: Stage[..., Any], run: Run, context: ChildContext, value: object) -> Outcome:
    if isinstance(value, Later):
        return Postponed(run.call, value.seconds, None if value.until is None else value.until.timestamp())
    if isinstance(value, Skip):
        return Skipped(run.call, run.beginning(to_text(value.reason), MESSAGE))
    if inspect.isawaitable(value):
        return end_with_error(run, TypeError(f"{stage.name} returned {value!r}: a stage that awaits must be async def"))
    data, files = encode_result(value, f"Stage {stage.name!r}")
    if len(data) > run.limit:
        message = f"The stage's result has {len(data)} bytes; at most {run.limit} are kept. Return a File instead."
        return Raised(run.call, "RESULT_TOO_LARGE", message, True, "")
    if context.published + len(files) > run.artifacts:
        message = error_codes.too_many_artifacts(run.artifacts)
        return Raised(run.call, error_codes.TOO_MANY_ARTIFACTS, message, True, "")
    kept = tuple((str(context.keep(file)), file.name) for file in files)
    return Returned(run.call, Document(data, kept), _width(data), context.has_scratch)


def print_error(run: Run, error: BaseException) -> None:
    """Into the job's log. An error whose own code fails to print it is not printed."""
    with contextlib.suppress(Exception):
        sys.stderr.write(_trace(run, error))


def end_with_error(run: Run, error: BaseException) -> Raised:
    """Never raises: that would look like a process that died."""
    code, message, permanent = error_codes.code_of(error), _describe(error), False
    match error:
        case Permanent():
            code, message, permanent = to_text(error.code), str(error.message), True
        case InvalidInput():
            fields = "; ".join(f"{each['field']}: {each['message']}" for each in error.errors)
            code, message, permanent = error_codes.INVALID, fields or error.message, True
        case SystemExit():
            message = f"The stage called exit({error.code})."
    if run.memory is not None and (code == error_codes.OUT_OF_MEMORY or _is_out_of_memory(code, message)):
        code, message = error_codes.OUT_OF_MEMORY, f"{error_codes.over_memory(run.memory)} {message}"
    detail = to_text(_trace(run, error))
    return Raised(run.call, code, run.beginning(to_text(message), MESSAGE), permanent, detail)


def _is_out_of_memory(code: str, message: str) -> bool:
    """Whether a library got no memory and says so in an error of its own."""
    return code == error_codes.EXCEPTION and says_refused(message)


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # broad: how an error describes itself is the user's code too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _trace(run: Run, error: BaseException) -> str:
    """The traceback from where the user's own code begins."""
    top = error.__traceback__
    while top is not None and str(top.tb_frame.f_globals.get("__name__")).startswith("packhorse."):
        top = top.tb_next
    whole = "".join(traceback.format_exception(type(error), error, top or error.__traceback__))
    return run.end(whole, DETAIL)


def _argument(document: Document) -> tuple[bytes, Sequence[File]] | Failed:
    return (document.value, _files(document)) if document.failed is None else Failed(*document.failed)


def _files(document: Document) -> Sequence[File]:
    return [File(Path(path), name) for path, name in document.files]


def _width(data: bytes) -> int | None:
    if not data.startswith(b"["):
        return None
    return len(json.decode(data, list[Any]))
