"""What a ``postgresql://`` address says: the server, and which of its schemas is this store."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from packhorse.errors import SettingError

SCHEMA = "packhorse"
NAME = re.compile(r"[a-z_][a-z0-9_]{0,49}")
"""Letters that need no quotes anywhere, and few enough of them to leave room in the name of a channel."""

STATEMENTS = 300
"""Prepared statements kept per connection: more than this adapter has."""


class Address(NamedTuple):
    server: str
    """What the driver is given, with the password in it."""
    schema: str
    statements: int
    """0 behind a pool that hands out connections per transaction, such as pgbouncer: it would not find them again."""
    shown: str
    """What people may see."""

    @property
    def is_pooled(self) -> bool:
        return self.statements == 0


def address_from(url: str) -> Address:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    schema = options.pop("schema", SCHEMA)
    statements = options.pop("statement_cache_size", str(STATEMENTS))
    shown = urlunsplit(("postgresql", parts.netloc.rpartition("@")[2], parts.path, "", ""))
    if not NAME.fullmatch(schema):
        raise SettingError(f"A schema is named in small letters, digits and _, not {schema!r}.", name="store")
    if not statements.isdecimal():
        raise SettingError(f"statement_cache_size must be a number, not {statements!r}.", name="store")
    server = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(options), ""))
    return Address(server, schema, int(statements), shown)
