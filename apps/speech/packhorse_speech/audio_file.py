"""Writes samples as wav, or as mp3 with exact timing, and reads wav."""

from __future__ import annotations

import struct
import wave
from pathlib import Path
from typing import NamedTuple

import lameenc
import numpy as np

from packhorse_speech.providers import Samples

BIT_RATE = 96
"""kbit/s: enough for one voice to keep the ends of turns sharp."""
DELAY = 576
"""Samples of silence that the encoder adds at the start."""


class Layout(NamedTuple):
    """How frames of layer III are laid out in a version of MPEG."""

    rates: tuple[int, ...]
    """Samples per second, by the index in a frame's header; likewise thousand bits per second."""
    bit_rates: tuple[int, ...]
    samples: int
    side: int
    """Bytes of a mono frame between its header and its audio data."""

    def size(self, header: bytes) -> int:
        bits = self.bit_rates[header[2] >> 4] * 1000
        return self.samples // 8 * bits // self.rates[header[2] >> 2 & 3] + (header[2] >> 1 & 1)


MPEG1 = Layout((44_100, 48_000, 32_000), (0, 32, 40, 48, 56, 64, 80, 96, 112, 128), 1152, 17)
MPEG2 = Layout((22_050, 24_000, 16_000), (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96), 576, 9)
RATES = (*MPEG1.rates, *MPEG2.rates)


def write(samples: Samples, rate: int, path: Path) -> None:
    """The suffix selects the format."""
    data = (np.clip(samples, -1, 1) * 32_767).round().astype("<i2").tobytes()
    if path.suffix == ".wav":
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(data)
    else:
        path.write_bytes(mp3(data, rate))


def read_wav(path: Path) -> tuple[Samples, int]:
    with wave.open(str(path), "rb") as file:
        data = file.readframes(file.getnframes())
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32_768), file.getframerate()


def mp3(data: bytes, rate: int) -> bytes:
    encoder = lameenc.Encoder()
    encoder.set_bit_rate(BIT_RATE)
    encoder.set_in_sample_rate(rate)
    encoder.set_out_sample_rate(rate)
    encoder.set_channels(1)
    encoder.set_quality(2)
    encoder.silence()
    music = bytes(encoder.encode(data) + encoder.flush())
    return tag(music, len(data) // 2) + music


def tag(music: bytes, samples: int) -> bytes:
    """A first frame that says how many samples the encoder has added at both ends.

    Without it a player starts about 25 ms late, or 50 at half the rate, and what is said about times is wrong by as
    much. The layout is that of the Xing and LAME headers, which players read.
    """
    layout = MPEG1 if music[1] >> 3 & 3 == 3 else MPEG2
    header = bytes([music[0], music[1] | 1, layout.bit_rates.index(BIT_RATE) << 4 | music[2] & 0x0C, music[3]])
    size, frames = layout.size(header), _frames(music, layout)
    padding = frames * layout.samples - samples - DELAY
    said = b"Info" + struct.pack(">III", 3, frames, len(music) + size)
    said += b"LAME3.100" + bytes([1]) + bytes(10) + bytes([BIT_RATE])
    said += (DELAY << 12 | max(0, min(padding, 4095))).to_bytes(3) + bytes(4)
    said += struct.pack(">IH", len(music) + size, 0)
    frame = header + bytes(layout.side) + said
    return (frame + _sum(frame).to_bytes(2)).ljust(size, b"\0")


def _frames(music: bytes, layout: Layout) -> int:
    at, count = 0, 0
    while at + 4 <= len(music):
        at += layout.size(music[at : at + 4])
        count += 1
    return count


def _sum(data: bytes) -> int:
    """CRC-16 as LAME computes it."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xA001 if value & 1 else 0)
    return value
