"""Texts that are too long are cut. Secrets are taken out before: nobody would know half of one again."""

from __future__ import annotations

from packhorse.core.redaction import redact
from packhorse.worker.child.messages import Run


def beginning(text: str, most: int, run: Run) -> str:
    return text if len(text) <= most else redact(text, run.words())[:most]


def end(text: str, most: int, run: Run) -> str:
    return text if len(text) <= most else redact(text, run.words())[-most:]


def pieces(text: str, most: int, run: Run) -> list[str]:
    if len(text) <= most:
        return [text]
    text = redact(text, run.words())
    return [text[start : start + most] for start in range(0, len(text), most)]
