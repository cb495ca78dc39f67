"""Forms as browsers send them: read within limits of size, time and number, and kept by nobody.

The framework would take any size for any time, and remember the last thousand bodies: some have a key in them.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from litestar.datastructures import FormMultiDict

from packhorse.errors import TooLarge, UnsupportedMedia
from packhorse.http.requests import Body
from packhorse.settings import Settings
from packhorse.web.render import Page

KIND = "application/x-www-form-urlencoded"
SMALL = 16 * 1024
"""Bytes of a form that anybody may send."""
ROOM = 64 * 1024
"""Bytes besides parameters, all of which may be in a form."""
FIELDS = 1000


async def form(request: Page, *, is_small: bool = False) -> FormMultiDict:
    """Raises TooLarge, TooSlow, Malformed or UnsupportedMedia."""
    settings: Settings = request.app.state.settings
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    limit = SMALL if is_small else 3 * settings.parameters_limit + ROOM  # most of what is typed takes three bytes
    body = await Body(request.receive, settings).whole(limit)
    if body and sent != KIND:
        raise UnsupportedMedia(f"A form is sent as {KIND}.")
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS)
    except ValueError:
        raise TooLarge(f"A form has at most {FIELDS} fields.", field="body", limit=FIELDS) from None
    return FormMultiDict(pairs)
