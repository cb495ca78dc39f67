"""The protocol of a speech provider, so that other packages can add providers."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

GROUP = "packhorse_speech.providers"
"""Entry point group for providers of other packages; each entry is a class without arguments."""

Samples = NDArray[np.float32]
"""One channel, between -1 and 1."""


class Voice(NamedTuple):
    id: str
    name: str
    language: str
    """A BCP 47 tag."""


class Provider(Protocol):
    @property
    def rate(self) -> int:
        """Samples per second of its output, one of `audio_file.RATES`."""

    def voices(self) -> list[Voice]:
        """The voices of this machine; speakers without a voice get them in this order."""

    def speak(self, text: str, voice: str) -> Samples: ...


@runtime_checkable
class SsmlProvider(Protocol):
    """A provider that also reads SSML."""

    def speak_ssml(self, document: str, voice: str) -> Samples: ...


@runtime_checkable
class VaryingProvider(Protocol):
    """A provider that can tell apart more speakers than it has voices."""

    def variation(self, voice: str, n: int) -> str | None:
        """Another voice, made from this one, for ``n`` from 1; None where there are no more."""


@cache
def providers() -> dict[str, Provider]:
    """The installed providers, by name."""
    from packhorse_speech.espeak import Espeak

    found: dict[str, Provider] = {"espeak-ng": Espeak()}
    for entry in entry_points(group=GROUP):
        made: Any = entry.load()
        found[entry.name] = made()
    return found


def voices_of(provider: str, language: str) -> list[Voice]:
    return [voice for voice in providers()[provider].voices() if voice.language == language]


def names() -> list[str]:
    return sorted(providers())


def languages() -> list[str]:
    return sorted({voice.language for provider in providers().values() for voice in provider.voices()})


def voice_ids() -> list[str]:
    return sorted({voice.id for provider in providers().values() for voice in provider.voices()})
