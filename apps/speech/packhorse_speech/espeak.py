"""The eSpeak NG provider: small, fast, many languages, no network and no model, with a mechanical sound."""

from __future__ import annotations

import ctypes
import threading
from functools import cached_property
from pathlib import Path
from typing import Any

import espeakng_loader
import numpy as np

from packhorse_speech.providers import Samples, Voice

SYNCHRONOUS = 2
DO_NOT_EXIT = 0x8000
BY_CHARACTER = 1
UTF8 = 1

LANGUAGES = {"en-US": "en-us", "en-GB": "en-gb", "zh-TW": "cmn", "zh-CN": "cmn"}
VARIANTS = ("f3", "m3", "f5", "m7", "f2", "m1", "f4", "m8", "f1", "m4")
"""Ordered so that neighbours sound most different."""

_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Espeak:
    """One voice at a time in a process: the library keeps its state in globals."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @property
    def rate(self) -> int:
        return self._library[1]

    def voices(self) -> list[Voice]:
        there = {path.name for path in (Path(espeakng_loader.get_data_path()) / "voices" / "!v").iterdir()}
        return [
            Voice(f"{language}+{variant}", f"{'woman' if variant[0] == 'f' else 'man'} {variant[1:]}", language)
            for language in LANGUAGES
            for variant in VARIANTS
            if variant in there
        ]

    def speak(self, text: str, voice: str) -> Samples:
        language, _, variant = voice.partition("+")
        library, _ = self._library
        with self._lock:
            if library.espeak_SetVoiceByName(f"{LANGUAGES[language]}+{variant}".encode()) != 0:
                raise RuntimeError(f"eSpeak NG does not know the voice {voice}.")
            self._heard.clear()
            data = text.encode() + b"\0"
            library.espeak_Synth(data, len(data), 0, BY_CHARACTER, 0, UTF8, None, None)
            library.espeak_Synchronize()
            return np.frombuffer(b"".join(self._heard), np.int16).astype(np.float32) / np.float32(32_768)

    @cached_property
    def _heard(self) -> list[bytes]:
        return []

    @cached_property
    def _library(self) -> tuple[Any, int]:
        """Loaded on first use: a process that only submits does not need it."""
        library = ctypes.CDLL(espeakng_loader.get_library_path())
        rate = library.espeak_Initialize(SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), DO_NOT_EXIT)
        if rate <= 0:
            raise RuntimeError("eSpeak NG cannot be started.")
        self._callback = _Callback(self._hear)  # kept: the library calls it as long as it is loaded
        library.espeak_SetSynthCallback(self._callback)
        return library, rate

    def _hear(self, samples: Any, count: int, _events: Any) -> int:
        if samples and count > 0:
            self._heard.append(ctypes.string_at(samples, count * 2))
        return 0
