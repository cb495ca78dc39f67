"""``app.schedule(...)``: schedules declared in code. Loaded only by apps that have one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from packhorse.core.schedules import Declared, Terms, check_terms
from packhorse.define.durations import seconds
from packhorse.define.introspection import caller, check_name, definition_error
from packhorse.define.options import ScheduleOptions, check_names
from packhorse.define.pipelines import Pipeline
from packhorse.define.signature import Submits
from packhorse.errors import InvalidInput


def declare_schedule(
    id: str, what: Pipeline[Any] | Submits[..., Any], params: object, cron: str, options: ScheduleOptions
) -> Declared:
    try:
        check_names(options, ScheduleOptions, "a schedule")
        terms = Terms(
            pipeline=_pipeline(what).name,
            parameters=_parameters(what, params),
            cron=cron,
            zone=options.get("zone", "UTC"),
            user=options.get("user", "local"),
            active=options.get("active", True),
            overlap=options.get("overlap", "skip"),
            misfire=options.get("misfire", "skip"),
            window=seconds(options.get("window", 3600.0)),
            labels=dict(options.get("labels", {})),
        )
        check_terms(terms, time.time())
        return Declared(check_name(id), terms)
    except (ValueError, TypeError, InvalidInput) as error:
        raise definition_error(f"Schedule {id!r}: {error}", caller()[0]) from error


def _pipeline(what: Pipeline[Any] | Submits[..., Any]) -> Pipeline[Any]:
    return what.pipeline if isinstance(what, Submits) else what


def _parameters(what: Pipeline[Any] | Submits[..., Any], params: object) -> bytes:
    if params is None:
        params = {}
    if isinstance(params, Mapping):
        params = what.params_from(**params) if isinstance(what, Submits) else what.params(**params)
    data, files = _pipeline(what).schema.encode(params)
    if files:
        raise ValueError("a schedule cannot hold files")
    return data
