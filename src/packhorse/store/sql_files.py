"""Named SQL statements, read once from the `.sql` files beside each SQL store.

A file starts with a header: purpose, callers, tables. Each statement follows a line ``-- name: the_name``. Comments are
cut off, so that a server never sees them.
"""

from __future__ import annotations

import re
from importlib import resources

NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


class Statements(dict[str, str]):
    """Statements by name: ``SQL.put`` is the text of the statement ``put``, as quick as any attribute."""

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"There is no SQL statement named {name!r}.")


def load(package: str | None, file: str) -> Statements:
    """The statements of ``sql/{file}.sql`` in the package."""
    assert package is not None
    return parse((resources.files(package) / "sql" / f"{file}.sql").read_text())


def parse(text: str) -> Statements:
    _, *rest = NAME.split(text)
    found = Statements()
    for name, body in zip(rest[::2], rest[1::2], strict=True):
        if name in found:
            raise ValueError(f"The SQL statement {name!r} is defined twice.")
        lines = [line.rstrip() for line in body.splitlines() if not line.lstrip().startswith("--")]
        found[name] = "\n".join(line for line in lines if line).removesuffix(";")
    found.__dict__.update(found)
    return found


def migrations(package: str | None) -> list[tuple[int, str]]:
    """The scripts in ``migrations/`` of the package, each with the version that it leads to."""
    assert package is not None
    scripts = (entry for entry in (resources.files(package) / "migrations").iterdir() if entry.name.endswith(".sql"))
    return sorted((int(script.name.removesuffix(".sql")), script.read_text()) for script in scripts)
