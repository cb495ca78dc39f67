"""Where in a job's parameters there are secrets, and how they look to everybody who may not read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packhorse.core.paths import ANY, Path, changed

MASK = "••••"
"""What is shown in place of a secret, whatever its length."""

SEALED = "$secret"
"""The only name in the object that stands for a secret at rest: ``{"$secret": "…"}``."""


def is_sealed(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {SEALED}


def masked(value: Any, paths: Sequence[Path]) -> Any:
    return changed(value, paths, lambda _: MASK)


def merged(value: Any, before: Any, paths: Sequence[Path]) -> Any:
    """The value with what was there before wherever somebody has sent the mask back: they left the secret as it was.

    In a list only if all of it is where it was: who drops one account must not give its password to the next.
    """
    if () in paths:
        return before if value == MASK and before is not None else value
    if isinstance(value, Mapping) and isinstance(before, Mapping):
        return {name: merged(inner, before.get(name), _below(paths, name, ANY)) for name, inner in value.items()}
    if isinstance(value, list) and isinstance(before, list) and _is_same(value, before, _below(paths, ANY)):
        return [merged(inner, was, _below(paths, ANY)) for inner, was in zip(value, before, strict=True)]
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


def _is_same(value: Sequence[Any], before: Sequence[Any], paths: Sequence[Path]) -> bool:
    """Whether two lists differ in nothing but secrets: else nobody knows which element is which."""
    return [_rest(each, paths) for each in value] == [_rest(each, paths) for each in before]


def _rest(value: Any, paths: Sequence[Path]) -> Any:
    """What is no secret."""
    if () in paths:
        return None
    if isinstance(value, Mapping):
        return {
            name: _rest(inner, below) for name, inner in value.items() if () not in (below := _below(paths, name, ANY))
        }
    return [_rest(inner, _below(paths, ANY)) for inner in value] if isinstance(value, list) else value


def _below(paths: Sequence[Path], *steps: str) -> list[Path]:
    return [path[1:] for path in paths if path and path[0] in steps]
