"""Hears what a stage prints and logs, and lets it through to whoever captured it before."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TextIO, cast

FORMAT = "%(levelname)s %(name)s: %(message)s"
"""As in a worker's process, and so is the level."""

Say = Callable[[str], None]


@contextmanager
def capture_output(say: Say) -> Iterator[None]:
    """Give ``say`` each line that is printed or logged until the end of the block.

    Of two blocks inside each other, which there are if a hook of one stage has another run, the inner one hears.
    """
    root, handler = logging.getLogger(), _Handler(say)
    level, outer = root.level, [each for each in root.handlers if isinstance(each, _Handler)]
    streams = _Stream("stdout", say), _Stream("stderr", say)
    for each in outer:
        root.removeHandler(each)
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        for stream in streams:
            stream.restore()
        root.setLevel(level)
        root.removeHandler(handler)
        for each in outer:
            root.addHandler(each)


class _Stream:
    """Stands in for a stream of `sys`. What somebody writes to it after the block goes to the original only."""

    def __init__(self, name: Literal["stdout", "stderr"], say: Say) -> None:
        self._name = name
        self._say: Say | None = say
        self._rest = ""
        self._replaced: TextIO | _Stream = getattr(sys, name)
        self._original: TextIO = self._replaced._original if isinstance(self._replaced, _Stream) else self._replaced
        setattr(sys, name, cast(TextIO, self))

    def write(self, text: str) -> int:
        if self._say is not None:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._say(line)
        return self._original.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def restore(self) -> None:
        if self._rest and self._say is not None:
            self._say(self._rest)
        self._say = None
        if getattr(sys, self._name) is self:  # else a debugger has put its own there
            setattr(sys, self._name, self._replaced)


class _Handler(logging.Handler):
    def __init__(self, say: Say) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter(FORMAT))
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] != "packhorse":  # what we say ourselves is not the stage's
            for line in self.format(record).splitlines():
                self._say(line)
