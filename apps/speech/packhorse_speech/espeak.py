"""The eSpeak NG provider: small, fast, many languages, no network and no model, with a mechanical sound."""

from __future__ import annotations

import ctypes
import re
import threading
from functools import cache
from pathlib import Path
from typing import Any

import espeakng_loader
import numpy as np

from packhorse_speech.providers import Samples, Voice

SYNCHRONOUS = 2
DO_NOT_EXIT = 0x8000
BY_CHARACTER = 1
UTF8 = 1
SSML = 0x10
RATE, PITCH = 1, 3  # parameters of the library
WORDS_PER_MINUTE, MIDDLE = 175, 50  # their defaults

LANGUAGES = {
    "cs-CZ": "cs", "da-DK": "da", "de-DE": "de", "el-GR": "el", "en-GB": "en", "en-US": "en-us", "es-ES": "es",
    "es-MX": "es-419", "fi-FI": "fi", "fr-FR": "fr", "hi-IN": "hi", "hu-HU": "hu", "id-ID": "id", "it-IT": "it",
    "ko-KR": "ko", "nb-NO": "nb", "nl-NL": "nl", "pl-PL": "pl", "pt-BR": "pt-br", "pt-PT": "pt", "ro-RO": "ro",
    "ru-RU": "ru", "sv-SE": "sv", "tr-TR": "tr", "uk-UA": "uk", "vi-VN": "vi", "zh-CN": "cmn", "zh-HK": "yue",
    "zh-TW": "cmn",
}  # fmt: skip
"""The engine's name of each language that is offered."""
CHINESE = ("cmn", "yue")

WOMEN = ("f3", "f5", "f2", "f4", "f1", "Alicia", "Andrea", "Annie", "belinda", "linda")
MEN = ("m3", "m7", "m1", "m8", "m4", "Alex", "Denis", "Lee", "Michael", "david")
VARIANTS = tuple(name for pair in zip(WOMEN, MEN, strict=True) for name in pair)
"""Ordered so that neighbours sound most different."""
PITCHES, RATES = (MIDDLE, 35, 65, 20, 80), (WORDS_PER_MINUTE, 150)
VARIATIONS = [(pitch, rate) for rate in RATES for pitch in PITCHES]
"""Of each variant, for more speakers than there are variants. The first is the variant as it is."""

DECIMAL = re.compile(r"(?<![\d.])(\d+)\.(\d+)(?![\d.]*\d)(?![^<]*>)")
"""A decimal fraction, outside of tags. 1.2.3 is none."""
DIGITS = "零一二三四五六七八九"

_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


_LOCK = threading.Lock()
"""One voice at a time in a process: the library keeps its state in globals."""
_HEARD: list[bytes] = []


class Espeak:
    @property
    def rate(self) -> int:
        return _library()[1]

    def voices(self) -> list[Voice]:
        there = {path.name for path in (Path(espeakng_loader.get_data_path()) / "voices" / "!v").iterdir()}
        return [
            Voice(f"{language}+{variant}", f"{'woman' if variant in WOMEN else 'man'} {variant}", language)
            for language in LANGUAGES
            for variant in VARIANTS
            if variant in there
        ]

    def variation(self, voice: str, n: int) -> str | None:
        """The voice with another pitch or pace."""
        return f"{voice}~{n}" if n < len(VARIATIONS) else None

    def speak(self, text: str, voice: str) -> Samples:
        return self._synthesise(text, voice, 0)

    def speak_ssml(self, document: str, voice: str) -> Samples:
        return self._synthesise(document, voice, SSML)

    def _synthesise(self, text: str, voice: str, flags: int) -> Samples:
        base, _, number = voice.partition("~")
        language, _, variant = base.partition("+")
        library, _ = _library()
        engine = LANGUAGES[language]
        data = (spell_decimals(text) if engine in CHINESE else text).encode() + b"\0"
        pitch, pace = VARIATIONS[int(number or 0)]
        with _LOCK:
            if library.espeak_SetVoiceByName(f"{engine}+{variant}".encode()) != 0:
                raise RuntimeError(f"eSpeak NG does not know the voice {voice}.")
            library.espeak_SetParameter(PITCH, pitch, 0)
            library.espeak_SetParameter(RATE, pace, 0)
            _HEARD.clear()
            library.espeak_Synth(data, len(data), 0, BY_CHARACTER, 0, UTF8 | flags, None, None)
            library.espeak_Synchronize()
            return np.frombuffer(b"".join(_HEARD), np.int16).astype(np.float32) / np.float32(32_768)


@cache
def _library() -> tuple[Any, int]:
    """The library and its samples per second. Loaded on first use: a process that only submits does not need it."""
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), DO_NOT_EXIT)
    if rate <= 0:
        raise RuntimeError("eSpeak NG cannot be started.")
    library.espeak_SetSynthCallback(_CALLBACK)
    return library, rate


def _hear(samples: Any, count: int, _events: Any) -> int:
    if samples and count > 0:
        _HEARD.append(ctypes.string_at(samples, count * 2))
    return 0


_CALLBACK = _Callback(_hear)
"""Kept: the library calls it as long as it is loaded."""


def spell_decimals(text: str) -> str:
    """Write the point of a number as the word that Chinese readers say: the engine leaves it out."""
    return DECIMAL.sub(lambda found: f"{found[1]}点{''.join(DIGITS[int(digit)] for digit in found[2])}", text)
