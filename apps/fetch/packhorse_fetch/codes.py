"""What may go wrong with a fetch: each code once, whether another attempt may help, and what is only a warning."""

from __future__ import annotations

from collections.abc import Mapping

AGAIN: Mapping[str, str] = {
    "TIMEOUT": "The server took longer than `timeout_s`, or was silent for 15 seconds.",
    "UNREACHABLE": "No connection could be made.",
    "NOT_RESOLVED": "No name server knows the host.",
    "BAD_ANSWER": "The connection broke, the body was shorter than announced, or the answer was not HTTP.",
    "HTTP_408": "The server timed out while it waited for the request.",
    "HTTP_425": "The server asks to be called a little later.",
    "HTTP_429": "The server is called too often.",
    "HTTP_500": "The server failed; the same for every other status from 500 on.",
    "HTTP_502": "A server behind the server failed.",
    "HTTP_503": "The server is overloaded or closed.",
    "HTTP_504": "A server behind the server took too long.",
}
"""Retried at once; when all attempts are used up, the job is retried later by itself."""

FINAL: Mapping[str, str] = {
    "HTTP_404": "There is nothing at the address; the same for every other status below 500 that is not listed.",
    "BLOCKED_ADDRESS": "The address, or one that it redirects to, is not public, or is blocked on principle.",
    "TOO_LARGE": "The body is larger than `max_bytes`, as it comes or unpacked.",
    "TOO_MANY_REDIRECTS": "The server redirects more than `max_redirects` times.",
    "BAD_REDIRECT": "The server redirects from https to http.",
    "BAD_HEADER": "One of the `headers` cannot be sent: it contains a line end, or the request sets it itself.",
    "BAD_ENCODING": "The body is compressed in a way that cannot be unpacked.",
    "TLS_FAILED": "The certificate is not valid for that name.",
}
"""The same would come of every other attempt."""

WARNINGS: Mapping[str, str] = {
    "BAD_IMAGE": "The file is declared as a picture, or begins like one, and cannot be read as one.",
    "IMAGE_TOO_LARGE": "The picture has more than 50 million pixels.",
    "BAD_JSON": "The file is declared as JSON and cannot be read as JSON.",
    "BAD_PAGE": "The markup of the page cannot be read.",
    "NOT_READ": "The file is JSON or a feed of more than 32 MiB. It is not looked into.",
    "BAD_FEED": "The file is declared as a feed, but is not a feed.",
    "BROKEN_FEED": "The feed is not well-formed XML. Only the readable parts were used.",
    "BAD_CHARSET": "Some characters do not exist in the charset. They were replaced by \ufffd.",
    "GUESSED_CHARSET": "The charset is not declared, or the file does not fit the declared one. It was guessed.",
    "WRONG_TYPE": "The server declares a picture, JSON or a feed, and the file is something else.",
    "MISSING_FIELDS": "The file does not have all fields of the schedule; `missing` lists those it lacks.",
}
"""The file is stored and published anyway. With `required`, the job fails with the code, and is not retried."""


def is_final(code: str) -> bool:
    return code not in AGAIN and not code.startswith("HTTP_5")
