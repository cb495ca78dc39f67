"""Options that several commands share, and the settings they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

from packhorse.cli import output
from packhorse.client import Client
from packhorse.settings import Loaded, load

SAMPLE = "packhorse.sample"


def _id(_type: object, text: str) -> None:
    if not text.strip():
        raise ValueError("a job is named by its id, and this is empty; see them with: packhorse jobs")


def _whole(_type: object, tokens: Sequence[Token]) -> int:
    """Cyclopts would make 1 of 1.5."""
    [token] = tokens
    try:
        return int(token.value)
    except ValueError:
        raise ValueError(f"{token.value!r} is not a whole number") from None


def _name(_type: object, text: str | None) -> None:
    if text is not None and not text.strip():
        raise ValueError("this is empty; without a name all are listed")


Status = Literal["pending", "running", "completed", "failed", "cancelled"]
JobId = Annotated[str, Parameter(validator=_id)]
ArtifactName = Annotated[str | None, Parameter(validator=_name)]
Whole = Annotated[int, Parameter(converter=_whole)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Output:
    json: bool = False
    "Print JSON, as the API gives it, one document per line."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Remote(Output):
    url: str | None = None
    "The server to ask; else PACKHORSE_URL, else a local packhorse dev."

    def client(self) -> Client:
        """Waits where the server says when to come again, and says so."""
        return Client(self.url, on_wait=output.report_wait)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Chosen:
    user: str | None = None
    "Only this user's."
    status: Status | None = None
    "Only those that are so."
    pipeline: str | None = None
    "Only those of this pipeline."
    since: str | None = None
    "Only those created then or later, as 2026-01-31T12:00:00Z."
    until: str | None = None
    "Only those created before then."

    def filters(self) -> dict[str, Any]:
        """Arguments for the client."""
        found = asdict(self)
        return {"created_from": found.pop("since"), "created_until": found.pop("until"), **found}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Places:
    store: str | None = None
    "Where jobs are remembered, as sqlite:///path or postgresql://user@host/db."
    blobs: str | None = None
    "Where files are kept, as file:///path or s3://bucket/prefix."
    scratch: str | None = None
    "Folder in which running stages work."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Pace:
    queues: Annotated[list[str] | None, Parameter(name="--queue", negative=())] = None
    "Slots per queue, as onnx=2,bie=1; may be repeated."
    slots: str | None = None
    "Slots of a queue whose number is not given."
    lease: str | None = None
    "After how long a silent worker is given up, as 15s."
    grace: str | None = None
    "How long a stage has between being asked to stop and being killed."
    drain: str | None = None
    "How long a worker that was told to stop lets its stages finish."


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
