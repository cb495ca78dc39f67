"""The additional path, chosen by the pipeline's author, under which a completed job's files are published."""

from __future__ import annotations

import re
import string
from hashlib import sha256
from urllib.parse import quote

from packhorse.core.models import Job

ROOT = "published"
TENANT = "default"  # whose files are at the root of a destination; those of others are in a folder with % in front
FIELDS = ("pipeline", "schedule", "date", "job")
PART = re.compile(r"(?!\.)([A-Za-z0-9._-]|\{(?:" + "|".join(FIELDS) + r")\})+")
MAX_PATTERN = 200  # maximum characters of a pattern
MAX_VALUE = 63  # maximum characters of a filled field, which is a name
MAX_PART, MAX_PATH, MAX_PARTS = 255, 600, 24
"""Limits of the filled path. The key adds a tenant before it and a file name after it."""


def check_pattern(pattern: str) -> str:
    """The pattern, if it gives every job a valid path. Raises ValueError."""
    if len(pattern) > MAX_PATTERN or not all(PART.fullmatch(part) for part in pattern.split("/")):
        known = ", ".join(f"{{{name}}}" for name in FIELDS)
        raise ValueError(
            f"publish= is a path without / at its ends, of letters, digits, . _ - and {known}, not {pattern!r}"
        )
    longest = string.Formatter().format(pattern, **dict.fromkeys(FIELDS, "x" * MAX_VALUE))
    parts = longest.split("/")
    if len(longest) > MAX_PATH or len(parts) > MAX_PARTS or max(map(len, parts)) > MAX_PART:
        raise ValueError(
            f"publish= is too long: with {MAX_VALUE} characters for each field, {pattern!r} has more than "
            f"{MAX_PATH} in all, more than {MAX_PART} between two /, or more than {MAX_PARTS} parts"
        )
    return pattern


def publish_folder(job: Job) -> str | None:
    """Folder of the job's files in the object store; with a slash in front, in the destination of published files.

    The date is that of the tick, or of the submit, in UTC.
    """
    if not job.plan.publish:
        return None
    from packhorse.core import cron  # loaded late: an app that only names the pattern does not need the calendar

    firing = job.firing
    path = string.Formatter().format(
        job.plan.publish,
        pipeline=job.plan.pipeline,
        schedule=job.id if firing is None else firing.schedule,
        date=cron.utc(job.created_at if firing is None else firing.tick)[:10],
        job=job.id,
    )
    if path.startswith("/"):  # in a destination of its own, which has no other files
        return path if job.tenant == TENANT else f"/%{tenant_folder(job.tenant)}{path}"
    return f"{ROOT}/{tenant_folder(job.tenant)}/{path}"


def tenant_folder(tenant: str) -> str:
    """A folder name that is unique per tenant, whatever characters its name has."""
    quoted = quote(tenant, safe="").replace(".", "%2E")
    return quoted if len(quoted) <= MAX_PATTERN else f"%{sha256(tenant.encode(errors='surrogatepass')).hexdigest()}"
