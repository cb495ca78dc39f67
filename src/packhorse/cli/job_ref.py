"""Which job is meant: by its whole id, or by the beginning or end of one, as lists and pages show it."""

from __future__ import annotations

from packhorse.client import Client, Json
from packhorse.errors import InvalidInput

WHOLE = 32
"""Hexadecimal digits of an id."""
SHORTEST = 4
"""Digits that name a job: fewer are a slip, and one of the commands deletes."""
NEWEST = 200
"""Jobs among which an end is looked for: no index knows it."""
ENDING = 8
"""Digits of an end that name a job: with fewer, an older one that is not looked at might well end the same."""
SHOWN = 5
"""Jobs that are told apart where several are meant."""


def named(client: Client, text: str) -> str:
    """The id of the only job whose id begins or ends so. What names none is left for the server to say so."""
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
        raise InvalidInput(f"{text} may be several jobs: {_told([*found.values()])}.", field="job")
    return next(iter(found), text)


def _digits(job: Json) -> str:
    return str(job["job_id"]).replace("-", "")


def _after(digits: str) -> str:
    """The id behind the last that begins so; there is none behind the very last."""
    digits = f"{min(int(digits.ljust(WHOLE, 'f'), 16) + 1, 16**WHOLE - 1):0{WHOLE}x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _told(jobs: list[Json]) -> str:
    shown = [f"{job['job_id']} ({job['pipeline']}, {job['status']})" for job in jobs[:SHOWN]]
    return ", ".join([*shown, "and more"] if len(jobs) > SHOWN else shown)
