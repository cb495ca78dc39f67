"""A person with a browser: what is on the screen, and whatever the browser had to complain about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from playwright.sync_api import Browser, ConsoleMessage, Page, expect

LIMIT = 30_000.0
"""Milliseconds for what is to be seen: the machine may have much else to do."""

AXE = Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js"
SERIOUS = ["serious", "critical"]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COLOURS = ["color-contrast", "link-in-text-block"]
"""Rules whose outcome differs between the themes: the same page is checked by all rules in the light one."""
CHECK = """
async ([rules, colours, serious]) => {
  const runOnly = matchMedia("(prefers-color-scheme: dark)").matches ? colours : rules;
  const found = await axe.run(document, {runOnly, resultTypes: ["violations"]});
  const bad = found.violations.filter((each) => serious.includes(each.impact));
  return [bad.map((each) => [each.id, each.impact, ...each.nodes.map((node) => node.html)]), found.passes.length];
}
"""
"""What is wrong, and how many rules found nothing. Only of the first is every element described: a long page has
thousands that are well."""

T = TypeVar("T")

expect.set_options(timeout=LIMIT)

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`);
});
"""


def aside(act: Callable[[], T]) -> T:
    """What runs an event loop of its own: playwright keeps one in this thread."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(act).result()


class Complaints:
    """Of the browser: scripts that fail, and what the policy has blocked. There should be none."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.said: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))

    def _console(self, message: ConsoleMessage) -> None:
        is_answer = message.text.startswith("Failed to load resource")  # a status: what a test is about, it asserts
        if message.type == "error" and not is_answer:
            self.said.append(message.text)


@contextmanager
def person(browser: Browser, root: str, **options: Any) -> Iterator[Page]:
    """A browser of their own at the site; at its end there was nothing to complain about."""
    context = browser.new_context(base_url=root, **options)
    context.set_default_timeout(LIMIT)
    context.add_init_script(WATCH)
    page = context.new_page()
    complaints = Complaints(page)
    try:
        yield page
        violations = page.evaluate("window.violations ?? []")
        assert (complaints.said, violations) == ([], [])
    finally:
        context.close()


def check_access(page: Page) -> None:
    """No serious finding of axe, by WCAG 2.2 AA. Its script is put in by the browser, past the policy.

    In the dark theme it looks at colours only, so a test that checks a page there also checks it in the light one.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text() + "; true")
    bad, passed = page.evaluate(CHECK, [RULES, COLOURS, SERIOUS])
    assert bad == []
    assert passed
