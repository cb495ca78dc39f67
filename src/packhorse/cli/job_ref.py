"""Finds a job by its id, or by the beginning or end of it, as lists and pages show it."""

from __future__ import annotations

from packhorse.client import Client, Json
from packhorse.errors import InvalidInput

WHOLE = 32
"""Hexadecimal digits of an id."""
SHORTEST = 4
"""Minimum number of digits: fewer are likely a typo, and `delete` uses this too."""
NEWEST = 200
"""How many of the newest jobs are searched by the end of their id, which has no index."""
ENDING = 8
"""Minimum number of digits for an end: with fewer, an older job could have the same end."""
SHOWN = 5
"""Matching jobs that the error lists."""


def resolve_job(client: Client, text: str) -> str:
    """The id of the only job whose id begins or ends with the text; the text itself if there is none."""
    digits = text.strip("… ").replace("-", "").lower()
    if not SHORTEST <= len(digits) < WHOLE or not set(digits) <= set("0123456789abcdef"):
        return text
    # Ids are in the order of time: those that begin so are the first below what comes after the last that could.
    is_end, is_begin = text.strip().startswith("…"), text.strip().endswith("…")
    below = [] if is_end else client.list(cursor=_after(digits), limit=SHOWN + 1)["items"]
    newest = client.list(limit=NEWEST)["items"] if len(digits) >= ENDING and not is_begin else []
    found = {job["job_id"]: job for job in below if _digits(job).startswith(digits)}
    found |= {job["job_id"]: job for job in newest if _digits(job).endswith(digits)}
    if len(found) > 1:
        raise InvalidInput(f"{text} may be several jobs: {_list_jobs([*found.values()])}.", field="job")
    return next(iter(found), text)


def _digits(job: Json) -> str:
    return str(job["job_id"]).replace("-", "")


def _after(digits: str) -> str:
    """The id after the last one with this beginning; there is none after the highest id."""
    digits = f"{min(int(digits.ljust(WHOLE, 'f'), 16) + 1, 16**WHOLE - 1):0{WHOLE}x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _list_jobs(jobs: list[Json]) -> str:
    shown = [f"{job['job_id']} ({job['pipeline']}, {job['status']})" for job in jobs[:SHOWN]]
    return ", ".join([*shown, "and more"] if len(jobs) > SHOWN else shown)
