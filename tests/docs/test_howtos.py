"""Each how-to does what it says, when somebody pastes it from top to bottom."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.docs.blocks import ROOT, blocks
from tests.docs.running import run
from tests.servers import postgres, seaweed
from tests.servers.browser import browsing
from tests.web.browser import person

[CODE] = [each.code for each in blocks(ROOT / "docs/howto/upload-from-a-browser.md") if each.file == "pipelines.py"]


@pytest.mark.release  # tests/http/test_mount.py has its claims
def test_mount_in_fastapi(tmp_path: Path) -> None:
    ran = run("docs/howto/mount-in-fastapi.md", folder=tmp_path)

    assert ran.out.strip().endswith('"Hello Bob!"')


@pytest.mark.release  # the page about progress begins with it
def test_upload_from_a_browser(tmp_path: Path) -> None:
    """The function of the page runs in Node; its form is served."""
    ran = run("docs/howto/upload-from-a-browser.md", folder=tmp_path)

    assert '<input type="file" name="text" required />' in ran.out
    assert ran.out.splitlines()[-1].startswith("job 0")


def test_progress_in_your_page(tmp_path: Path) -> None:
    """With curl; then with the page in a browser, by a person who chooses a file."""
    ran = run(
        "docs/howto/upload-from-a-browser.md",
        "docs/howto/progress-in-your-page.md",
        folder=tmp_path,
        at_last=counted_in_a_browser,
    )

    *told, missing = [line for line in ran.out.splitlines() if line.startswith(("data: ", "There"))]
    seen = [json.loads(line.removeprefix("data: ")) for line in told]
    progress = [each["progress"] for each in seen]
    assert missing == "There is no such job."
    assert len(progress) > 2
    assert progress == sorted(progress)
    assert seen[-1] == {"status": "completed", "progress": 100.0, "result": len(CODE.split())}


def counted_in_a_browser(url: str) -> None:
    text = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"one two\n" * 20}
    with browsing() as browser, person(browser, url) as page:
        page.goto("/page/")
        page.locator("input").set_input_files(text)  # type: ignore[arg-type]
        page.get_by_role("button", name="Count").click()
        bar = page.get_by_role("progressbar")
        expect(bar).to_have_js_property("title", "running")
        expect(bar).to_have_js_property("title", "completed")
        expect(bar).to_have_js_property("value", 100)
        expect(page.get_by_text("40 words")).to_be_visible()


def test_limits_and_fairness(tmp_path: Path) -> None:
    ran = run("docs/limits.md", folder=tmp_path)

    assert "Limit whisper-gpu is 2 at once (version 1)." in ran.out
    assert "version 1: 2, by local at" in ran.out
    assert "Limit whisper-gpu is 1 at once." in ran.out
    assert "1 passed" in ran.out


def test_test_a_pipeline(tmp_path: Path) -> None:
    ran = run("docs/howto/test-a-pipeline.md", folder=tmp_path)

    assert "8 passed" in ran.out


@pytest.mark.release  # twenty-two kills; tests/testing/test_crash_lab.py has the same claims
def test_find_stages_that_are_not_safe_to_repeat(tmp_path: Path) -> None:
    ran = run("docs/howto/test-crashes.md", folder=tmp_path)

    for point in ("returned", "published"):
        assert f"charge, killed when {point}: happened more than once: 5 for JOB" in ran.out
    assert "receipt, killed" not in ran.out
    assert "The lab found a charge that was made twice." in ran.out
    assert ran.out.count("1 passed") == 1


@pytest.mark.release  # tests/cli/test_schedules.py has its commands
def test_schedule(tmp_path: Path) -> None:
    ran = run("docs/howto/schedule.md", folder=tmp_path)

    assert "30 2 * * *" in ran.out
    assert "nobody reads it on Sundays" in ran.out
    assert "completed" in ran.out


@pytest.mark.release  # tests/deploy/test_compose.py and tests/journey/test_hosts.py show it, without its commands
def test_scale_out(tmp_path: Path) -> None:
    """On PostgreSQL and a bucket, with three workers."""
    place = seaweed.running().place()
    ran = run(
        "docs/howto/scale-out.md",
        folder=tmp_path,
        instead={
            "postgresql://packhorse@db/packhorse": shlex.quote(postgres.server().url()),
            "s3://bucket/packhorse": shlex.quote(place),
            "_ACCESS_KEY=access": f"_ACCESS_KEY={shlex.quote(seaweed.KEYS.access)}",
            "_SECRET_KEY=secret": f"_SECRET_KEY={shlex.quote(seaweed.KEYS.secret)}",
        },
    )

    assert (tmp_path / "result.json").read_text().strip() == "6"
    assert ran.out.count(" alive ") == 3
    assert "gpu" in ran.out


@pytest.mark.release  # tests/cli and tests/http have its claims, without its commands
def test_secure_and_limit(tmp_path: Path) -> None:
    ran = run("docs/howto/secure-and-limit.md", folder=tmp_path)

    assert "signing in with ••••" in ran.out
    assert "hunter2" not in ran.out + ran.err + ran.behind
    assert '"9 bytes delivered"' in ran.out
    assert "key_revoked" in ran.out or "revoked" in ran.out


def test_coming_from_celery_or_rq(tmp_path: Path) -> None:
    ran = run("docs/howto/from-celery-or-rq.md", folder=tmp_path)

    five, thumbs = ran.out.splitlines()
    assert five == "5"
    assert thumbs == str([f"7/{n}.thumb.jpg" for n in range(5)])
