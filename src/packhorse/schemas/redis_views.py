"""A job as the Redis keys of two apps show it: the model converter's record, and the video app's hashes and messages.

Both designs know neither tenants nor a cancelled job: a user of another tenant than ``default`` is named
``tenant/user``, and a cancelled job has failed.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict
from urllib.parse import quote

from packhorse.core import json
from packhorse.core.models import Job
from packhorse.core.plan import Status, TaskStatus
from packhorse.schemas.jobs import JobDocument
from packhorse.schemas.progress import StageDocument, iso
from packhorse.store.base import Line, Sample

DEFAULT_TENANT = "default"
INPUT = ("filename", "object_key", "size_bytes", "ref_images_count")
COPIED = (
    "promoted", "promoted_object_keys", "metadata", "origin", "user_id", "created_by_client_id", "source_filename",
    "created_at", "updated_at", "progress", "stage_progress", "error",
)  # fmt: skip
COMPLETED, FAILED = "COMPLETED", "FAILED"
ENDED = (COMPLETED, FAILED)


def user_name(tenant: str | None, user: str) -> str:
    """The user's part of a key. Escaped, so that no user name can spell a key of another tenant."""
    if tenant in (None, DEFAULT_TENANT):
        return user.replace("%", "%25").replace("/", "%2F")
    return f"{quote(str(tenant), safe='')}/{quote(user, safe='')}"


# The model converter


class ConverterTiming(TypedDict):
    started_at: str | None
    completed_at: str | None


def converter_record(job: Job, document: JobDocument, lasts: float) -> dict[str, Any]:
    """The job with the fields of the converter's own record, and no others. ``lasts``: when the record expires."""
    stages = list(job.plan.index)
    keys, timings = document["result_object_keys"], document["stage_timings"]
    tenant, first = document["tenant_id"], document["input"]
    files = {each["parameter"] for each in document["inputs"]} | set(job.plan.lists)
    copied: dict[str, Any] = {name: document[name] for name in COPIED}  # type: ignore[literal-required]
    return {
        **copied,
        "job_id": job.id,
        "status": converter_status(job, document),
        "stage": None if job.status is Status.COMPLETED else document["stage"],
        "parameters": {name: value for name, value in document["parameters"].items() if name not in files},
        "output": {f"{name}_path": keys.get(name) for name in stages},
        "result_object_keys": {name: keys.get(name) for name in stages},
        "tenant_id": None if tenant == DEFAULT_TENANT else tenant,
        "input": None if first is None else {name: first.get(name, 0) for name in INPUT},
        "stage_timings": {name: _timing(timings.get(name)) for name in stages},
        "expires_at": document["expires_at"] or iso(lasts),
    }


def converter_status(job: Job, document: JobDocument) -> str:
    """The stage in capitals while the job is active."""
    if job.status.is_terminal:
        return COMPLETED if job.status is Status.COMPLETED else FAILED
    return (document["stage"] or job.plan.stages[-1].name).upper()


def _timing(found: Mapping[str, Any] | None) -> ConverterTiming | None:
    if found is None or found["started_at"] is None:
        return None
    return {"started_at": found["started_at"], "completed_at": found["completed_at"]}


def reached_stages(record: Mapping[str, Any]) -> list[str]:
    """The stages for which the job has been queued, as its record says."""
    names = list(record["stage_timings"])
    if record["status"] in ENDED:
        return [name for name in names if record["stage_timings"][name] is not None]
    return names[: names.index(record["status"].lower()) + 1] if record["status"].lower() in names else names


def queued_stages(before: Mapping[str, Any] | None, record: Mapping[str, Any]) -> list[str]:
    """The stages for which the job has been queued since ``before``."""
    reached = reached_stages(record)
    if before is not None and before["status"] in ENDED and record["status"] not in ENDED:  # a retry
        return reached[-1:]
    told = set() if before is None else set(reached_stages(before))
    return [name for name in reached if name not in told]


def ended_stages(before: Mapping[str, Any] | None, record: Mapping[str, Any], job: Job) -> Iterator[tuple[str, str]]:
    """The stages that have ended since ``before``, each with how; and "" for a job that failed in none of them."""
    is_told = False
    for name, timing in record["stage_timings"].items():
        at = (timing or {}).get("completed_at")
        was = None if before is None else (before["stage_timings"].get(name) or {}).get("completed_at")
        if at is not None and at != was:
            is_good = job.stage(name).is_done
            is_told = is_told or not is_good
            yield name, "completed" if is_good else "failed"
    if record["status"] == FAILED and (before is None or before["status"] != FAILED) and not is_told:
        yield "", "failed"


# Video analysis


def video_status(status: Status | TaskStatus) -> str:
    return "failed" if status in (Status.CANCELLED, TaskStatus.CANCELLED) else status.value


def video_job(job: Job, document: JobDocument) -> dict[str, str]:
    """The hash of a job."""
    running = [name for name, stage in document["stages"].items() if stage["status"] is TaskStatus.RUNNING]
    current = "" if job.status.is_terminal else next(iter(running), document["stage"] or "")
    error = document["last_error"]
    if job.status is Status.CANCELLED and error is None:
        last = "cancelled"
    else:
        last = "" if error is None else error["message"]
    part = document["stages"][current]["progress"] if current else document["stage_progress"]
    return {
        "uuid": job.id,
        "video_path": video_path(document),
        "status": video_status(job.status),
        "current_processor": current,
        "progress_total": f"{document['progress']:.0f}",
        "progress_current": f"{part:.0f}",
        "started_at": "" if job.started_at is None else str(int(job.started_at)),
        "updated_at": str(int(job.updated_at)),
        "error_count": str(document["error_count"]),
        "last_error": last,
    }


def video_path(document: JobDocument) -> str:
    """Where the video came from, or the key of its object if it was uploaded."""
    given = document["parameters"].get("video_path")
    if isinstance(given, str) and given:
        return given
    return "" if document["input"] is None else document["input"]["object_key"]


def video_processor(name: str, stage: StageDocument, updated_at: float) -> dict[str, str]:
    """The hash of a processor."""
    return {
        "name": name,
        "status": video_status(stage["status"]),
        "progress": f"{stage['progress']:.0f}",
        "current_frame": f"{stage['current'] or 0:g}",
        "total_frames": f"{stage['total'] or 0:g}",
        "started_at": _seconds(stage["started_at"]),
        "updated_at": _seconds(stage["updated_at"] or stage["completed_at"]) or str(int(updated_at)),
    }


LEAVES = {
    "status": "status", "progress": "progress", "current": "current_frame", "total": "total_frames",
    "started_at": "started_at",
}  # fmt: skip
"""Keys below that of a processor, and the field of its hash that each repeats."""


def _seconds(at: str | None) -> str:
    return "" if at is None else str(int(datetime.fromisoformat(at).timestamp()))


def video_messages(before: Sequence[str | None], now: Mapping[str, str], text: str, error: str) -> list[str]:
    """What happened to a processor since its status, current and total frame were ``before``."""
    status, current, total = before
    found = []
    if now["status"] != "pending" and status in (None, "pending"):
        found.append(("info", f"{now['name']} started"))
    if (now["current_frame"], now["total_frames"]) != (current or "0", total or "0") and now["total_frames"] != "0":
        found.append(("progress", text))
    if now["status"] != status:
        if now["status"] == "completed":
            found.append(("complete", f"{now['name']} completed"))
        elif now["status"] == "failed":
            found.append(("error", error))
    return [_message(kind, now, said) for kind, said in found]


def _message(kind: str, now: Mapping[str, str], said: str) -> str:
    numbers = {name: _number(now[f"{name}_frame{'s' * (name == 'total')}"]) for name in ("current", "total")}
    body = {"type": kind, "processor": now["name"], "timestamp": int(now["updated_at"]), "data": {"message": said}}
    return json.encode({**body, "data": {"message": said, **numbers}}).decode()


def _number(text: str) -> float:
    found = float(text)
    return int(found) if found.is_integer() else found


def video_samples(samples: Sequence[Sample], most: int) -> dict[str, list[str]]:
    """CPU in percent of a core and memory in bytes, the oldest first; tasks that run side by side are added up."""
    sums: dict[float, tuple[float, int]] = {}
    for each in samples:
        cpu, memory = sums.get(each.at, (0.0, 0))
        sums[each.at] = (cpu + each.cpu, memory + each.memory)
    last = [sums[at] for at in sorted(sums)][-most:]
    return {"cpu": [f"{100 * cpu:.1f}" for cpu, _ in last], "memory": [str(memory) for _, memory in last]}


def video_log(lines: Sequence[Line], most: int) -> str:
    """The end of the log, as text."""
    text = "".join(f"{iso(line.at)} {line.task.stage}: {line.text}\n" for line in lines)
    return text[-most:]
