"""Options and arguments that several commands share: the job that is meant, how to print, which server, settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

from packhorse.cli import output
from packhorse.client import Client, Json
from packhorse.errors import InvalidInput
from packhorse.settings import Loaded, load

SAMPLE = "packhorse.sample"

WHOLE = 32  # hexadecimal digits of an id
SHORTEST = 4  # minimum number of digits: fewer are likely a typo, and `delete` uses this too
NEWEST = 200  # how many of the newest jobs are searched by the end of their id, which has no index
ENDING = 8  # minimum number of digits for an end: with fewer, an older job could have the same end
SHOWN = 5  # matching jobs that the error lists


def not_empty(message: str) -> Callable[[object, str | None], None]:
    """A validator that refuses blank text with this message."""

    def check(_type: object, text: str | None) -> None:
        if text is not None and not text.strip():
            raise ValueError(message)

    return check


def _whole(_type: object, tokens: Sequence[Token]) -> int:
    """Cyclopts would make 1 of 1.5."""
    [token] = tokens
    try:
        return int(token.value)
    except ValueError:
        raise ValueError(f"{token.value!r} is not a whole number") from None


Status = Literal["pending", "running", "completed", "failed", "cancelled"]
JobId = Annotated[
    str,
    Parameter(
        validator=not_empty("the job id is empty; list the jobs with: packhorse jobs"),
        help="Job id, or its first digits, or the last 8 or more digits of one of the newest 200 jobs.",
    ),
]
Whole = Annotated[int, Parameter(converter=_whole)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Output:
    json: bool = False
    "Print JSON as the API returns it, one document per line."

    def print_list(
        self,
        found: Json | Sequence[Json],
        columns: Sequence[str],
        row: Callable[[Json], Sequence[object]],
        empty: str | None = None,
    ) -> None:
        """Print a list, or a page of one, as a table; or a sentence if there is nothing in it."""
        page: Json = found if isinstance(found, dict) else {"items": found, "next": None}
        if self.json:
            output.document(page)
        elif page["items"] or empty is None:
            output.table(columns, map(row, page["items"]))
        else:
            output.message(empty)

    def print_facts(self, found: Json, facts: Mapping[str, object]) -> None:
        """Print what the server answered, or the facts of it, one per line."""
        if self.json:
            output.document(found)
        else:
            output.facts(facts)

    def print_one(self, found: Json, text: str, *, to: Callable[[str], None] = output.plain) -> None:
        """Print what the server answered, or a sentence about it."""
        if self.json:
            output.document(found)
        else:
            to(text)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Remote(Output):
    url: str | None = None
    "URL of the server. Default: PACKHORSE_URL, else the packhorse dev of this folder, else port 3003 on this machine."

    def client(self) -> Client:
        """Waits where the server says when to come again, and says so."""
        return Client(self.url, on_wait=output.report_wait)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Chosen:
    user: str | None = None
    "Only jobs of this user."
    status: Status | str | None = None
    "Only jobs with this status, also by the name that its app has for it."
    pipeline: str | None = None
    "Only jobs of this pipeline."
    since: str | None = None
    "Only jobs created at this time or later, such as 2026-01-31T12:00:00Z."
    until: str | None = None
    "Only jobs created before this time."

    def filters(self) -> dict[str, Any]:
        found = asdict(self)
        return {"created_from": found.pop("since"), "created_until": found.pop("until"), **found}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Places:
    store: str | None = None
    "URL of the store for jobs, such as sqlite:///path, postgresql://user@host/db or redis://host."
    blobs: str | None = None
    "URL of the object store for files, such as file:///path, s3://bucket/prefix or gs://bucket/prefix."
    scratch: str | None = None
    "Folder for the working directories of running stages."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Pace:
    queues: Annotated[list[str] | None, Parameter(name="--queue", negative=())] = None
    "Slots per queue, such as onnx=2,bie=1. Can be repeated."
    slots: str | None = None
    "Slots of a queue for which no number is given."
    lease: str | None = None
    "Time without a sign of life after which a worker counts as lost, such as 15s."
    grace: str | None = None
    "Time between asking a stage to stop and killing its process, such as 10s."
    drain: str | None = None
    "Time a stopping worker waits for its running stages to finish, such as 30s."


def settings_from(*groups: Places | Pace, **flags: str | None) -> Loaded:
    """Flags win over everything else; those that were not given say nothing."""
    given: dict[str, str | list[str] | None] = {name: value for g in groups for name, value in asdict(g).items()}
    given |= flags
    return load({name: ",".join(value) if isinstance(value, list) else value for name, value in given.items()})


def flags_of(*groups: Places | Pace) -> list[str]:
    """The flags again, for a process that is to have the same."""
    given = [(name, value) for group in groups for name, value in asdict(group).items() if value is not None]
    return [
        word
        for name, value in given
        for word in (("--queue", ",".join(value)) if name == "queues" else (f"--{name}", value))
    ]


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
        raise InvalidInput(f"{text} matches several jobs: {_list_jobs([*found.values()])}.", field="job")
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
