"""What somebody wants a schedule to say: checks of the parameters, the window and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from packhorse.core import json
from packhorse.core.json import values_at
from packhorse.core.plan import Plan
from packhorse.core.redaction import MASK, restore_masked
from packhorse.core.schedules import Misfire, Overlap, Terms
from packhorse.define.durations import seconds
from packhorse.define.validation import NOT_VALID, find_nul, invalid
from packhorse.errors import TooLarge
from packhorse.jobs.catalog import Published
from packhorse.jobs.encryption import get_encryptor
from packhorse.settings import Settings

LONGEST_REASON = 500


class ScheduleRequest(Struct):
    """A schedule as it is to be. What is left out is as if it had never been said."""

    cron: str = ""
    """Five fields, or six with the second in front."""
    pipeline: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    user_id: str | None = None
    zone: str = "UTC"
    active: bool = True
    overlap: Overlap = "skip"
    misfire: Misfire = "skip"
    window: float | str = 3600.0
    labels: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    dry_run: bool = False
    """Only tell what would become of it, and what would be different."""


def check_reason(reason: str) -> None:
    if len(reason) > LONGEST_REASON or "\0" in reason:
        message = f"It must be a text of at most {LONGEST_REASON} characters"
        raise invalid(NOT_VALID, [{"field": "reason", "message": message}])


def window_seconds(wanted: ScheduleRequest) -> float:
    try:
        return seconds(wanted.window)
    except ValueError as error:
        raise invalid(NOT_VALID, [{"field": "window", "message": str(error)}]) from error


def accept_parameters(
    pipeline: Published, wanted: ScheduleRequest, written: bytes, settings: Settings, tenant: str, before: Terms | None
) -> bytes:
    """Check the parameters and return them as they are stored. Every schedule's parameters pass here.

    A mask in place of a secret keeps the stored secret. Parameters equal to the stored ones keep their stored
    spelling: otherwise every edit in a form would show as a difference from the code.
    """
    if len(written) > settings.parameters_limit:
        raise TooLarge(field="parameters", limit=settings.parameters_limit)
    plan, encryptor = pipeline.plan, get_encryptor(settings.secret_key)
    is_kept = before is not None and before.pipeline == plan.pipeline and MASK in _secrets(wanted, plan)
    kept = before.parameters if before is not None and is_kept else b"{}"
    _check(
        pipeline, restore_masked(wanted.parameters, json.decode(encryptor.decrypt(kept, plan, tenant)), plan.secrets)
    )
    stored = written
    if plan.secrets:
        sealed = restore_masked(wanted.parameters, json.decode(kept), plan.secrets)
        stored = encryptor.encrypt_rest(json.encode(sealed), plan, tenant)
    if before is not None and before.pipeline == plan.pipeline and _canonical(stored) == _canonical(before.parameters):
        return before.parameters
    return stored


def _canonical(parameters: bytes) -> bytes:
    """One spelling for equal values. As bytes: Python considers 1, 1.0 and True equal."""
    return msgspec.json.encode(json.decode(parameters), order="sorted")


def _secrets(wanted: ScheduleRequest, plan: Plan) -> list[Any]:
    return list(values_at(wanted.parameters, plan.secrets))


def _check(pipeline: Published, given: Mapping[str, Any]) -> None:
    files = [name for name in given if name in pipeline.files]
    masks = [".".join(path) for path in pipeline.plan.secrets if MASK in values_at(given, [path])]
    mistakes = [
        *({"field": name, "message": "A schedule cannot hold files"} for name in files),
        *pipeline.mistakes(given),
        *find_nul(given),
        *({"field": name, "message": "These dots only stand for a secret"} for name in masks),
    ]
    if mistakes:
        raise invalid(NOT_VALID, mistakes)
