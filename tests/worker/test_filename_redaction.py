"""Names of files are told to everybody who may see the job."""

from __future__ import annotations

import pytest

from packhorse.core.redaction import MASK
from packhorse.define.files import MAX_NAME, artifact_name, sanitize_name
from packhorse.worker.files import redact_filename

SECRET = "canary/0123+456 789"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (f"for {SECRET}.txt", f"for {MASK}.txt"),
        (sanitize_name(f"for {SECRET}.txt"), f"{MASK}.txt"),
        (artifact_name(f"in/{SECRET}/a.txt"), f"in/{MASK}/a.txt"),
        ("a/canary-yellow.txt", f"a/{MASK}-yellow.txt"),
        ("a/b.txt", "a/b.txt"),
    ],
    ids=["whole", "after-its-slash", "folder", "before-its-slash", "other"],
)
def test_a_secret_is_taken_out_of_a_name(name: str, told: str) -> None:
    assert redact_filename(name, [SECRET]) == told


@pytest.mark.parametrize("suffix", ["", ".txt"])
@pytest.mark.parametrize("left", range(1, 12))
def test_a_name_that_was_cut_does_not_end_with_half_a_secret(suffix: str, left: int) -> None:
    secret = "canary-0123456789"
    name = sanitize_name("x" * (MAX_NAME - len(suffix) - left) + secret + suffix)
    assert name.endswith(secret[:left] + suffix)

    told = redact_filename(name, [secret])

    assert told.endswith(f"x{MASK if left >= 4 else secret[:left]}{suffix}")


def test_without_secrets_a_name_is_as_it_was() -> None:
    assert redact_filename("x" * 400, ()) == "x" * 400
