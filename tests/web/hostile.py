"""What somebody would write where others read it, to see whether it runs there."""

from __future__ import annotations

from playwright.sync_api import Page

CORPUS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "javascript:alert(3)",
    "</textarea></title><svg onload=alert(4)>",
    "{{ 7 * 7 }}{% raw %}",
    "' onmouseover='alert(5)",
)
ALL = " ".join(CORPUS)


def check_harmless(page: Page, *texts: str) -> None:
    """All of it is there to be read, and none of it is more than text. The ``person`` hears whatever it would do."""
    shown = page.locator("main").inner_text() + " ".join(
        page.locator("main input, main textarea").evaluate_all("(fields) => fields.map((field) => field.value)")
    )
    for text in texts:
        assert text in shown, text
    assert page.locator("main script, main img, main [onload], main [onerror], main [onmouseover]").count() == 0
    assert page.locator("main a[href^='javascript']").count() == 0
