"""Decompresses a response in small pieces, so that a decompression bomb is stopped early."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from packhorse.errors import OutboundFailed

PIECE = 64 * 1024
SUPPORTED = "gzip, deflate"
WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class Plain:
    def unpack(self, data: bytes) -> Iterator[bytes]:
        yield data

    def end(self) -> None:
        """Nothing to check: the connection reports missing bytes."""


class Packed:
    def __init__(self, coding: str, host: str) -> None:
        self._window = WINDOWS[coding]
        self._host = host
        self._zlib = zlib.decompressobj(self._window)
        self._is_begun = False

    def unpack(self, data: bytes) -> Iterator[bytes]:
        while data:
            try:
                piece = self._zlib.decompress(data, PIECE)
            except zlib.error as error:
                if not self._is_begun and self._window == zlib.MAX_WBITS:  # many send deflate without its header
                    self._window = -zlib.MAX_WBITS
                    self._zlib = zlib.decompressobj(self._window)
                    continue
                raise self._broken() from error
            self._is_begun = True
            if piece:
                yield piece
            data = self._zlib.unconsumed_tail
            if self._zlib.eof and self._zlib.unused_data and self._window > zlib.MAX_WBITS:  # gzip may be in members
                data = self._zlib.unused_data
                self._zlib = zlib.decompressobj(self._window)

    def end(self) -> None:
        if self._is_begun and not self._zlib.eof:
            raise self._broken()

    def _broken(self) -> OutboundFailed:
        return OutboundFailed(code="BAD_ENCODING", host=self._host, reason="its answer cannot be unpacked")


def unpacker(coding: str, host: str) -> Plain | Packed:
    """The decoder for one content coding. Several nested codings are refused, because only bombs use them."""
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return Plain()
    if coding not in WINDOWS:
        raise OutboundFailed(code="BAD_ENCODING", host=host, reason=f"it answers in {coding[:40]!r}")
    return Packed(coding, host)
