"""What makes speech of text, behind one protocol: other packages may bring providers of their own."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

GROUP = "packhorse_speech.providers"
"""The entry points that other packages name their providers with, each a class without arguments."""

Samples = NDArray[np.float32]
"""One channel, between -1 and 1."""


class Voice(NamedTuple):
    id: str
    name: str
    language: str
    """As in BCP 47."""


class Provider(Protocol):
    @property
    def rate(self) -> int:
        """Samples per second of everything it makes: one of those that `audio_file.RATES` has."""

    def voices(self) -> list[Voice]:
        """Those that are there on this machine, in the order in which speakers without one are given them."""

    def speak(self, text: str, voice: str) -> Samples: ...


@cache
def providers() -> dict[str, Provider]:
    """Those of this machine, by name."""
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
