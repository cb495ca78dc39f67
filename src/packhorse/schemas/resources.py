"""How things look in JSON, besides the job, which is shown by others, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from packhorse.auth.charges import Limit
from packhorse.background.bulk_actions import Order
from packhorse.core import json
from packhorse.core.models import Event, TaskId
from packhorse.core.plan import Definition
from packhorse.jobs.estimate import Estimate
from packhorse.jobs.explain import Reason
from packhorse.schemas.failure_documents import AboutDocument, OrderDocument
from packhorse.schemas.job import artifact as artifact
from packhorse.schemas.job import iso as iso
from packhorse.schemas.job import of_stage_in_order as of_stage_in_order
from packhorse.schemas.job import position as position
from packhorse.schemas.job import result_files as result_files
from packhorse.schemas.job import result_of as result_of
from packhorse.schemas.job import shown as shown
from packhorse.schemas.job import shown_new as shown_new
from packhorse.schemas.job import stages as stages
from packhorse.schemas.job_pages import EstimateDocument, LineDocument, PipelineDocument, ReasonDocument, SeriesDocument
from packhorse.schemas.key_documents import AuditDocument, DeliveryDocument, KeyDocument, LimitDocument, WebhookDocument
from packhorse.store.base import Delivery, Endpoint, Entry, FailureFilter, Key, Line, Sample


def event(happened: Event) -> dict[str, Any]:
    facts = dict(happened.data)
    due = {"not_before": iso(facts.pop("at"))} if "at" in facts else {}
    return {"n": happened.n, "type": happened.type, "at": iso(happened.at), **facts, **due}


def line(written: Line) -> LineDocument:
    return {
        "n": written.n,
        "stage": written.task.stage,
        "element": written.task.element,
        "attempt": written.attempt,
        "at": iso(written.at),
        "text": written.text,
    }


def reason(found: Reason) -> ReasonDocument:
    told: ReasonDocument = {"code": found.code, "message": found.message}
    return told if found.ahead is None else {**told, "ahead": found.ahead}


def estimate(found: Estimate, now: float) -> EstimateDocument:
    return {
        "seconds": _rounded(found.seconds),
        "ends_at": None if found.seconds is None else iso(now + found.seconds),
        "runs": found.runs,
        "stages": {
            name: {"seconds": _rounded(left.seconds), "usual_seconds": _rounded(left.usual)}
            for name, left in found.stages.items()
        },
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def series(samples: Iterable[Sample]) -> list[SeriesDocument]:
    """By task, in the order of the first sample."""
    by_task: dict[TaskId, list[Sample]] = {}
    for sample in samples:
        by_task.setdefault(sample.task, []).append(sample)
    return [
        {
            "stage": task.stage,
            "element": task.element,
            "peak_cpu": max(sample.cpu for sample in found),
            "peak_memory_bytes": max(sample.memory for sample in found),
            "samples": [{"at": iso(each.at), "cpu": each.cpu, "memory_bytes": each.memory} for each in found],
        }
        for task, found in by_task.items()
    ]


def pipeline(published: Definition) -> PipelineDocument:
    plan = json.plan_from(published.plan)
    return {
        "name": published.pipeline,
        "app": published.app,
        "description": published.description,
        "schema": json.decode(published.schema),
        "one_per_user": plan.slot is not None,
        "statuses": {status.value: called for status, called in plan.statuses.items()},
        "outputs": dict(plan.outputs),
        "stages": [
            {
                "name": stage.name,
                "queue": stage.queue,
                "needs": [{"stage": need.stage, "how": need.how} for need in stage.needs],
                "retries": stage.retries,
                "timeout": stage.timeout,
            }
            for stage in plan.stages
        ],
        "published_at": iso(published.published_at),
    }


def webhook(endpoint: Endpoint) -> WebhookDocument:
    return {
        "webhook_id": endpoint.id,
        "url": endpoint.url,
        "created_at": iso(endpoint.created_at),
        "created_by": endpoint.created_by,
        "ended_at": iso(endpoint.ended_at),
        "reason": endpoint.reason,
    }


def delivery(waiting: Delivery) -> DeliveryDocument:
    return {
        "id": waiting.id,
        "job_id": waiting.job_id,
        "run": waiting.run,
        "created_at": iso(waiting.at),
        "attempts": waiting.attempts,
        "next_at": iso(waiting.next_at),
        "error": waiting.error,
    }


def order(order_id: str, given: Order) -> OrderDocument:
    return {
        "order_id": order_id,
        "kind": given.kind,
        "created_at": iso(given.at),
        "by": given.by,
        "reason": given.reason,
        "pace": given.pace,
        "about": _about(given.wanted),
        "count": given.count,
        "done": given.done,
        "left": dict(given.left),
        "named": [{"failure_id": each.failure_id, "why": each.why} for each in given.named],
        "ended_at": iso(given.ended_at),
    }


def _about(wanted: FailureFilter | None) -> AboutDocument | None:
    if wanted is None:
        return None
    return {
        "fingerprint": wanted.fingerprint,
        "pipeline": wanted.pipeline,
        "error_code": wanted.code,
        "user_id": wanted.user,
        "schedule_id": wanted.schedule,
        "since": iso(wanted.since),
        "until": iso(wanted.until),
    }


def key(key: Key) -> KeyDocument:
    return {
        "key_id": key.id,
        "tenant_id": key.tenant,
        "scopes": list(key.scopes),
        "name": key.name,
        "user_id": key.user,
        "job_id": key.job_id,
        "created_at": iso(key.created_at),
        "created_by": key.created_by,
        "ends_at": iso(key.ends_at),
        "ended_by": key.ended_by,
    }


def limit(limit: Limit, left: int) -> LimitDocument:
    window = None if limit.unit == "concurrent-requests" else limit.window
    return {"name": limit.name, "unit": limit.unit, "limit": limit.most, "window_seconds": window, "left": left}


def audited(entry: Entry) -> AuditDocument:
    return {
        "n": entry.n,
        "at": iso(entry.at),
        "event": entry.event,
        "tenant_id": entry.tenant,
        "key_id": entry.actor,
        "address": entry.address,
        "job_id": entry.job_id,
        "trace_id": entry.trace_id,
        "count": entry.count,
        "details": dict(entry.details),
    }
