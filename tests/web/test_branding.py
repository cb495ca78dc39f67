"""The operator's name, logo and colour: on all pages, also on those of end users, and readable whatever is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.errors import SettingError
from packhorse.settings import load
from packhorse.web.widgets.brand import GROUNDS, READABLE, Rgb, contrast, readable, stylesheet
from tests.http.processes import Place
from tests.http.unserved import unserved

ROOT = "http://127.0.0.1"
LOGO = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
COLORS: dict[str, Rgb] = {
    "black": (0, 0, 0),
    "white": (1, 1, 1),
    "yellow": (1, 1, 0),
    "grey": (0.5, 0.5, 0.5),
    "purple": (0.478, 0.122, 0.635),
}


async def test_a_brand_is_on_every_page_and_its_logo_runs_nothing(tmp_path: Path) -> None:
    logo = tmp_path / "logo.svg"
    logo.write_text(LOGO)
    place = Place(tmp_path, brand_name="Acme <Studio>", brand_logo=str(logo), brand_color="#7a1fa2")
    async with unserved(place.settings, f"{ROOT}/") as http:
        pages = [
            (await http.get(path, headers={"Accept": "text/html"})).text for path in ("jobs", "p/nothing", "nowhere")
        ]
        styles = await http.get("static/brand.css")
        image = await http.get("static/brand-logo")

    for page in pages:
        assert "· Acme &lt;Studio&gt;</title>" in page
        assert '<img src="/static/brand-logo" alt=""> Acme &lt;Studio&gt;' in page
        assert '<link rel="stylesheet" href="/static/brand.css">' in page
    assert "--accent: #7a1fa2" in styles.text
    assert (image.text, image.headers["content-type"]) == (LOGO, "image/svg+xml")
    assert "default-src 'none'" in image.headers["content-security-policy"]


async def test_without_a_brand_nothing_more_is_loaded(tmp_path: Path) -> None:
    async with unserved(Place(tmp_path).settings, f"{ROOT}/") as http:
        page = (await http.get("jobs")).text
        image = await http.get("static/brand-logo")

    assert "brand.css" not in page
    assert "· packhorse</title>" in page
    assert image.status_code == 404


@pytest.mark.parametrize("color", COLORS.values(), ids=COLORS)
@pytest.mark.parametrize("theme", GROUNDS)
def test_any_colour_becomes_readable(color: Rgb, theme: str) -> None:
    assert contrast(readable(color, GROUNDS[theme]), GROUNDS[theme]) >= READABLE


def test_a_readable_colour_stays_as_it_is() -> None:
    assert "--accent: #7a1fa2; --on-accent: #ffffff" in stylesheet("#7a1fa2")


@pytest.mark.parametrize(
    ("setting", "value"), [("brand_color", "red"), ("brand_color", "#fff;}"), ("brand_logo", "logo.html")]
)
def test_what_is_no_colour_or_logo_is_refused(setting: str, value: str) -> None:
    with pytest.raises(SettingError):
        load({setting: value})
