"""``/openapi.json``: what the server tells about itself, from where it is asked."""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.openapi.plugins import JsonRenderPlugin

from packhorse.core import json


class Told(JsonRenderPlugin):
    """Names as its server the place it is mounted at, which only a request knows."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return json.encode({**openapi_schema, "servers": [{"url": request.scope.get("root_path") or "/"}]})
