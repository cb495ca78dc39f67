"""Events of a job in the words that people use."""

from __future__ import annotations

from typing import Any

SAID = {
    "submitted": "Submitted",
    "started": "Run {run} started",
    "stage_started": "{where} started, attempt {attempt}",
    "stage_completed": "{where} completed",
    "stage_failed": "{where} failed for good",
    "cancelling": "Asked to stop",
    "completed": "Completed",
    "failed": "Failed",
    "cancelled": "Cancelled",
}
AGAIN = {
    "retry": "Run {run} was asked for",
    "revive": "Run {run} is begun by itself",
    "later": "{where} asked to be called later",
    "handed_back": "{where} was handed back by its worker",
}
TRIED = "{where} is tried again"


def told(event: Any) -> dict[str, Any]:
    """What happened and, if it is said, why."""
    what = SAID.get(event["type"], event["type"])
    if event["type"] == "retrying":
        what = AGAIN.get(event.get("why", ""), TRIED)
    facts = {"run": event.get("run", ""), "attempt": event.get("attempt", ""), "where": _where(event)}
    why = ": ".join(str(event[name]) for name in ("code", "message") if event.get(name))
    return {
        "n": event["n"],
        "at": event["at"],
        "what": what.format(**facts),
        "why": why,
        "worker": event.get("worker", ""),
        "not_before": event.get("not_before") if event["type"] == "retrying" else None,
    }


def _where(event: Any) -> str:
    element = event.get("element")
    return f"{event.get('stage') or 'the job'}" + (f"[{element}]" if element is not None else "")
