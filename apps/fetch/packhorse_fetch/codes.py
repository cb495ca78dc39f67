"""What may go wrong with a fetch: each code once, and whether trying again may help."""

from __future__ import annotations

from collections.abc import Mapping

AGAIN: Mapping[str, str] = {
    "TIMEOUT": "The server took longer than `timeout_s`, or was silent for 15 seconds.",
    "UNREACHABLE": "Nobody could be connected to.",
    "NOT_RESOLVED": "No name server knows the host.",
    "BAD_ANSWER": "The connection broke off, less came than was announced, or it was no HTTP.",
    "HTTP_408": "The server waited too long for us.",
    "HTTP_425": "The server wants to be asked a little later.",
    "HTTP_429": "The server is asked too often.",
    "HTTP_500": "The server failed; the same for every other status from 500 on.",
    "HTTP_502": "What the server asks failed.",
    "HTTP_503": "The server is busy or closed.",
    "HTTP_504": "What the server asks took too long.",
}
"""Tried again at once, and when all attempts are used up begun again later, by itself."""

FINAL: Mapping[str, str] = {
    "HTTP_404": "There is nothing there; the same for every other status below 500 that is not listed.",
    "BLOCKED_ADDRESS": "The address, or one that it led to, is not public, or not fetched from on principle.",
    "TOO_LARGE": "There is more of it than `max_bytes`, as it comes or unpacked.",
    "TOO_MANY_REDIRECTS": "It led on and on, more than `max_redirects` times.",
    "BAD_REDIRECT": "It led from https to http.",
    "BAD_HEADER": "One of the `headers` cannot be sent: it has a line end in it, or is not yours to set.",
    "BAD_ENCODING": "It is packed in a way that cannot be unpacked.",
    "TLS_FAILED": "The certificate is not good for that name.",
    "BAD_IMAGE": "It says that it is a picture, and cannot be read as one.",
    "IMAGE_TOO_LARGE": "The picture has more than 50 million points.",
    "BAD_JSON": "It says that it is JSON, and is not.",
    "BAD_FEED": "It says that it is XML, and is no feed, or one that declares entities.",
}
"""The same would come of every other attempt."""


def is_final(code: str) -> bool:
    return code not in AGAIN and not code.startswith("HTTP_5")
