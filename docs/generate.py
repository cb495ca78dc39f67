"""Writes docs/reference from the code: every setting, error, route and command. A test compares the two."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from packhorse import errors
from packhorse.api.serving import build
from packhorse.cli.commands import COMMANDS
from packhorse.errors import PackhorseError
from packhorse.settings import load, meanings

FOLDER = Path(__file__).parent / "reference"
HERE = str(Path.cwd())


def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    return {"settings.md": settings(), "errors.md": all_errors(), "http.md": http(), "commands.md": commands()}


def settings() -> str:
    rows = [(f"`{name}`", _default(name), meaning) for name, meaning in meanings().items()]
    return _page(
        "Settings",
        "From flags, the environment, `.env`, or `[tool.packhorse]` in pyproject.toml (there in lower case, without "
        "the prefix); the first that says something wins. Times are `250ms`, `90s`, `10m`, `24h`, `7d`; sizes `256KB`, "
        "`2GB`. An unknown name is refused. `packhorse config` shows each value and where it came from.",
        _table(("setting", "default", "meaning"), rows),
    )


def _default(name: str) -> str:
    """Where the default depends on the machine, the words for it."""
    field = name.removeprefix("PACKHORSE_").lower()
    if field == "slots":
        return "the number of cores"
    value = getattr(load(env={}, folder=FOLDER).settings, field)
    text = ",".join(value) if isinstance(value, dict) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{text.replace(HERE, '.')}`" if text else ""


def all_errors() -> str:
    rows = [
        (f"`{cls.type()}`", str(cls.status), str(cls.exit_code), _sentence(cls), cls.hint)
        for cls in _classes(PackhorseError)
    ]
    return _page(
        "Errors",
        "Over HTTP each is a problem (RFC 9457) whose `type` is `urn:packhorse:` and the word below; in Python the "
        "class of that name in `packhorse.errors`; on the command line a sentence, the hint, and the exit code.",
        _table(("type", "HTTP", "exit", "sentence", "hint"), rows),
    )


def _classes(cls: type[PackhorseError]) -> Iterator[type[PackhorseError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _classes(child)


def _sentence(cls: type[PackhorseError]) -> str:
    return (inspect.getdoc(cls) or "").splitlines()[0]


def http() -> str:
    rows = []
    for path, item in sorted((build(load(env={}, folder=FOLDER).settings).openapi_schema.paths or {}).items()):
        for method in ("get", "post", "put", "delete"):
            operation = getattr(item, method)
            if operation is not None:
                said = (operation.description or operation.summary or "").strip().splitlines()
                rows.append((f"`{method.upper()} {path}`", said[0] if said else ""))
    return _page("HTTP", "The file behind it is `/openapi.json` of a running server.", _table(("call", "what"), rows))


def commands() -> str:
    rows = [(f"`packhorse {name}`", meaning) for _, name, _, meaning in COMMANDS]
    return _page(
        "Commands",
        "`packhorse COMMAND --help` tells the options. Exit codes: 0, 1 the job failed, 2 usage, 3 refused, "
        "4 cancelled, 5 unreachable. `--json` prints what the API says.",
        _table(("command", "what"), rows),
    )


def _page(title: str, about: str, table: str) -> str:
    return f"# {title}\n\n{about}\n\n{table}\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
