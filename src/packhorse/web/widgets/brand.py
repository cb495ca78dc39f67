"""The operator's name, logo and colour on all pages. The colour is made lighter or darker until it can be read."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from packhorse.settings import Settings

Rgb = tuple[float, float, float]  # from 0 to 1

READABLE = 4.5
"""Contrast that text needs with its ground (WCAG 2.2 AA)."""
GROUNDS: dict[str, Rgb] = {"light": (0.965, 0.969, 0.976), "dark": (0.11, 0.13, 0.153)}
"""The ground of each theme on which the least contrast is left, as in page.css."""
STEPS = 50


class Brand(NamedTuple):
    name: str
    has_logo: bool
    has_color: bool


def brand_of(settings: Settings) -> Brand:
    return Brand(settings.brand_name, bool(settings.brand_logo), bool(settings.brand_color))


def read_logo(settings: Settings) -> bytes | None:
    """Read at each request, so that it can be replaced; None if there is none."""
    path = Path(settings.brand_logo)
    return path.read_bytes() if settings.brand_logo and path.is_file() else None


@lru_cache(10)
def stylesheet(color: str) -> str:
    """The variables of both themes that the colour replaces."""
    light, dark = (_rules(_rgb(color), ground) for ground in ("light", "dark"))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _rules(color: Rgb, theme: str) -> str:
    ground = GROUNDS[theme]
    accent = readable(color, ground)
    on_accent = max(((1.0, 1.0, 1.0), (0.0, 0.0, 0.0)), key=lambda each: contrast(each, accent))
    soft = f"color-mix(in srgb, {_hex(accent)} 12%, var(--raised))"
    return f"--accent: {_hex(accent)}; --on-accent: {_hex(on_accent)}; --accent-soft: {soft};"


def readable(color: Rgb, ground: Rgb) -> Rgb:
    """The colour, mixed with black or white by as little as makes it readable on the ground."""
    end = 0.0 if _luminance(ground) > 0.5 else 1.0
    mixed = (_mix(color, end, step / STEPS) for step in range(STEPS + 1))
    return next(each for each in mixed if contrast(each, ground) >= READABLE + 0.3)


def contrast(one: Rgb, other: Rgb) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: Rgb) -> float:
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _mix(color: Rgb, end: float, share: float) -> Rgb:
    red, green, blue = (each + (end - each) * share for each in color)
    return red, green, blue


def _rgb(text: str) -> Rgb:
    red, green, blue = (int(text[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def _hex(color: Rgb) -> str:
    return "#" + "".join(f"{round(each * 255):02x}" for each in color)
