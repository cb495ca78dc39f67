"""Where in a job's parameters there are secrets, and how they look to everybody who may not read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packhorse.core.paths import ANY, Path, changed

MASK = "••••"
"""What is shown in place of a secret, whatever its length."""

SEALED = "$secret"
"""The only name in the object that stands for a secret at rest: ``{"$secret": "…"}``."""


def masked(value: Any, paths: Sequence[Path]) -> Any:
    return changed(value, paths, lambda _: MASK)


def merged(value: Any, before: Any, paths: Sequence[Path]) -> Any:
    """The value with what was there before wherever somebody has sent the mask back: they left the secret as it was."""
    for path in paths:
        value = _merged(value, before, path)
    return value


def redacted(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def parted(text: str, secrets: Sequence[str]) -> tuple[str, str]:
    """Of a text that goes on: what can be told of it now, and its end as far as a secret may have begun there."""
    text = redacted(text, secrets)
    at = len(text) - begun(text, secrets)
    return text[:at], text[at:]


def begun(text: str, secrets: Sequence[str]) -> int:
    """How many characters at the end of a text are the beginning of a secret, which may go on in what follows it."""
    return max((_overlap(text, secret) for secret in secrets), default=0)


def _overlap(text: str, secret: str) -> int:
    start = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while start >= 0:
        if secret.startswith(text[start:]):
            return len(text) - start
        start = text.find(secret[0], start + 1)
    return 0


def redacted_in(value: Any, secrets: Sequence[str]) -> Any:
    """The same for every text in a JSON value, names too."""
    if isinstance(value, str):
        return redacted(value, secrets)
    if isinstance(value, Mapping):
        return {redacted(name, secrets): redacted_in(inner, secrets) for name, inner in value.items()}
    return [redacted_in(inner, secrets) for inner in value] if isinstance(value, list) else value


def _merged(value: Any, before: Any, path: Path) -> Any:
    if not path:
        return before if value == MASK and before is not None else value
    step, rest = path[0], path[1:]
    if isinstance(value, Mapping) and isinstance(before, Mapping):
        return {
            name: _merged(inner, before.get(name), rest) if step in (ANY, name) else inner
            for name, inner in value.items()
        }
    if isinstance(value, list) and isinstance(before, list) and step == ANY:
        was = [*before, *[None] * len(value)]
        return [_merged(inner, was[i], rest) for i, inner in enumerate(value)]
    return value
