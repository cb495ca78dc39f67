"""A call as a command to copy: what a person has to fill in is a variable of the shell."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

SOME: Mapping[str, Any] = {"string": "…", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}


def curl(at: str, method: str, path: str, operation: Json, *, has_keys: bool = False) -> str:
    """``at`` is where the server is."""
    words = ["curl", *_flags(operation)]
    if method != "get":
        words += ["-X", method.upper()]
    if has_keys:
        words += ["-H", '"Authorization: Bearer $PACKHORSE_KEY"']
    words += _body(operation.get("requestBody", {}))
    filled = re.sub(r"\{(\w+)\}", lambda found: f"${found[1].upper()}", path)
    return " ".join([*words, f'"{at}{filled}"'])


def _flags(operation: Json) -> list[str]:
    kinds = operation["responses"].get("200", {}).get("content", {})
    if "text/event-stream" in kinds:
        return ["-N"]
    return ["-OJ"] if "application/octet-stream" in kinds else []


def _body(body: Json) -> list[str]:
    """As JSON, with what can be said in it; nothing where the body may be left out."""
    content = body.get("content", {})
    if not body.get("required") or "application/json" not in content:
        return []
    members = content["application/json"]["schema"].get("properties", {})
    some = {name: _some(part) for name, part in members.items() if not part.get("default")}
    given = json.dumps({name: value for name, value in some.items() if value not in (None, 0)}, ensure_ascii=False)
    return ["-H", "'Content-Type: application/json'", "-d", shlex.quote(given)]


def _some(part: Json) -> Any:
    kinds = [each.get("type") for each in part.get("anyOf", [part])]
    return next((SOME[kind] for kind in kinds if kind in SOME), None)
