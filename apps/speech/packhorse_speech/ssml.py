"""Speech markup: recognises SSML in a turn, and accepts the subset that is honoured."""

from __future__ import annotations

import re
from xml.etree import ElementTree

ALLOWED = {
    "speak": {"version", "lang"},
    "p": set[str](),
    "s": set[str](),
    "break": {"time", "strength"},
    "prosody": {"rate", "pitch", "volume", "range"},
    "emphasis": {"level"},
    "say-as": {"interpret-as", "format", "detail"},
    "sub": {"alias"},
}
"""Elements that are honoured, with their attributes."""
READ_AS = {"spell-out": "characters", "verbatim": "characters", "telephone": "digits"}
"""Values of `interpret-as` under the name that the engine knows."""
LONGEST_BREAK = 10.0
"""Seconds. Silence takes as much memory as speech, and costs the sender only a few characters."""
TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})(ms|s)", re.ASCII)
MARKUP = re.compile(r"<\s*/?\s*(?:speak|break|prosody|say-as|emphasis|sub)\b[^<>]*>")


class InvalidSsml(ValueError):
    """The message says what is wrong with the document."""


def document(text: str) -> str | None:
    """The SSML document that a text is or contains; None for plain text. Raises InvalidSsml.

    A text with elements but without ``<speak>`` is a fragment, and gets one.
    """
    if not MARKUP.search(text):
        return None
    if "<!" in text or "<?" in text:
        raise InvalidSsml("comments, declarations and processing instructions are not supported")
    whole = text if re.match(r"\s*<speak\b", text) else f"<speak>{text}</speak>"
    try:
        root = ElementTree.fromstring(whole)  # noqa: S314 (short, and without declarations)
    except ElementTree.ParseError as error:
        raise InvalidSsml(f"the markup is not well-formed ({error})") from error
    for element in root.iter():
        _check(element)
    return ElementTree.tostring(root, encoding="unicode")


def _check(element: ElementTree.Element) -> None:
    element.tag = element.tag.rpartition("}")[2]
    if element.tag not in ALLOWED:
        raise InvalidSsml(f"<{element.tag}> is not supported; supported are {', '.join(ALLOWED)}")
    attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    if surplus := sorted(attributes.keys() - ALLOWED[element.tag]):
        raise InvalidSsml(f"<{element.tag}> does not take {surplus[0]!r}")
    element.attrib.clear()
    element.attrib.update(attributes)
    if element.tag == "say-as" and "interpret-as" in attributes:
        element.set("interpret-as", READ_AS.get(attributes["interpret-as"], attributes["interpret-as"]))
    if element.tag == "break" and "time" in attributes:
        _check_break(attributes["time"])
    if element.tag == "speak":
        element.attrib.pop("lang", None)  # the voice decides


def _check_break(time: str) -> None:
    found = TIME.fullmatch(time)
    if found is None or float(found[1]) / (1000 if found[2] == "ms" else 1) > LONGEST_BREAK:
        raise InvalidSsml(f"the time of <break> must be at most {LONGEST_BREAK:.0f}s, such as 500ms or 1.5s")
