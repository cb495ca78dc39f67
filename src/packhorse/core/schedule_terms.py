"""What a schedule says: what is run, for whom, when, and what to do when that is not possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from msgspec import Struct, field
from msgspec.structs import asdict

from packhorse.core import cron
from packhorse.errors import InvalidInput

Overlap = Literal["skip", "queue", "cancel"]
Misfire = Literal["skip", "catch_up"]

LONGEST_TEXT = 255
MOST_LABELS = 32
LONGEST_WINDOW = 366 * 86_400.0


class Terms(Struct, frozen=True):
    """What people edit. Each version has its own."""

    pipeline: str
    parameters: bytes
    """JSON, kept byte by byte."""
    cron: str
    zone: str = "UTC"
    user: str = "local"
    active: bool = True
    overlap: Overlap = "skip"
    misfire: Misfire = "skip"
    window: float = 3600.0
    """Seconds in which a missed tick is caught up with, where it is."""
    labels: Mapping[str, str] = field(default_factory=dict)


def check(terms: Terms, now: float) -> None:
    """Raises InvalidInput that names what is wrong. Whether the parameters fit the pipeline is for others to say."""
    mistakes = [{"field": field, "message": message} for field, message in _mistakes(terms, now)]
    if mistakes:
        said = "; ".join(f"{each['field']}: {each['message']}" for each in mistakes)
        raise InvalidInput(f"The schedule is not valid: {said}.", errors=mistakes)


def _mistakes(terms: Terms, now: float) -> Iterator[tuple[str, str]]:
    if not _is_text(terms.user):
        yield "user_id", f"It must be a text of 1 to {LONGEST_TEXT} characters"
    if terms.overlap not in get_args(Overlap):
        yield "overlap", f"It is one of {', '.join(get_args(Overlap))}"
    if terms.misfire not in get_args(Misfire):
        yield "misfire", f"It is one of {', '.join(get_args(Misfire))}"
    if not 0 <= terms.window <= LONGEST_WINDOW:
        yield "window", "It must be between nothing and a year"
    if len(terms.labels) > MOST_LABELS:
        yield "labels", f"There are more than {MOST_LABELS}"
    if not all(_is_text(name) and _fits(value) for name, value in terms.labels.items()):
        yield "labels", f"Names and values must be texts of at most {LONGEST_TEXT} characters"
    yield from cron.mistakes(terms.cron, terms.zone, now)


def _is_text(text: object) -> bool:
    return text != "" and _fits(text)


def _fits(text: object) -> bool:
    """What an app's code says has not been checked by anybody else."""
    return isinstance(text, str) and len(text) <= LONGEST_TEXT and "\0" not in text


def difference(old: Terms, new: Terms) -> list[tuple[str, Any, Any]]:
    """Field, what it was, and what it is; parameters one by one are the matter of whoever may show them."""
    was, now = asdict(old), asdict(new)
    return [(name, was[name], now[name]) for name in was if was[name] != now[name]]
