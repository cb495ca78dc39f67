"""Stages that run on a condition, and stages that find nothing to do."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import (
    App,
    Context,
    File,
    Params,
    Secret,
    Skip,
    any_,
    contains,
    each,
    equals,
    gather,
    is_set,
    needs,
    not_,
)
from packhorse.define import Pipeline
from packhorse.errors import DefinitionError, InvalidInput, NotFinished
from packhorse.testing import Bench

app = App("media")


class Media(Params):
    kinds: list[str] = []  # noqa: RUF012  (each object gets a list of its own)
    words: list[str] = []  # noqa: RUF012
    sound: File | None = None
    token: Secret | None = None


media = app.pipeline("media", Media)


@media.stage
def split(ctx: Context, p: Media) -> list[str]:
    return p.words


@media.stage(when=any_(not_(is_set("kinds")), contains("kinds", "ocr")))
def ocr(ctx: Context, p: Media) -> str:
    return "text"


@media.stage(when=is_set("kinds"))
async def asr(ctx: Context, p: Media) -> str | Skip:
    return "speech" if p.sound else Skip("no audio track")


@media.stage
def subtitles(ctx: Context, p: Media, speech: str = needs(asr)) -> str:
    return speech.upper()


@media.stage
def measure(ctx: Context, p: Media, word: str = each(split)) -> int | Skip:
    return len(word) if word else Skip("empty")


@media.stage
def join(
    ctx: Context,
    p: Media,
    text: str | None = needs(ocr, optional=True),
    lines: str | None = needs(subtitles, optional=True),
    sizes: list[int] = gather(measure),
) -> str:
    return f"{text} {lines} {sizes}"


def test_stage_runs_if_its_condition_is_met(packhorse: Bench) -> None:
    job = packhorse.run(media, Media())

    assert job.result == "text None []"
    assert (job.status_of(ocr), job.status_of(asr)) == ("completed", "skipped")


def test_skipped_stages_start_no_process_and_count_as_done(packhorse: Bench) -> None:
    job = packhorse.run(media, Media(kinds=["asr"]))

    assert (job.status, job.result, job.progress) == ("completed", "None None []", 100)
    assert (job.status_of(ocr), job.attempts_of(ocr), job.attempts_of(asr)) == ("skipped", 0, 1)
    assert job.record.stage("asr").reason == "no audio track"
    assert (job.status_of(subtitles), job.record.stage("subtitles").reason) == ("skipped", "stage asr was skipped")
    with pytest.raises(NotFinished, match=r"skipped \(no audio track\)"):
        job.result_of(asr)


def test_elements_that_are_skipped_are_left_out(packhorse: Bench) -> None:
    job = packhorse.run(media, Media(words=["a", "", "ccc"]))

    assert job.result == "text None [1, 3]"
    assert job.result_of(gather(measure)) == [1, 3]


def test_secret_in_the_reason_is_masked(packhorse: Bench) -> None:
    pipeline = App("media").pipeline("media", Media)

    @pipeline.stage
    def tell(ctx: Context, p: Media) -> str | Skip:
        return Skip(f"nothing for {p.token.reveal() if p.token else ''}")

    job = packhorse.run(pipeline, Media(token=Secret("hunter2")))

    assert job.status == "completed"
    assert job.record.stage("tell").reason == "nothing for ••••"


def test_parameters_for_which_no_stage_runs_are_refused(packhorse: Bench) -> None:
    pipeline = App("media").pipeline("media", Media)

    @pipeline.stage(when=contains("kinds", "ocr"))
    def work(ctx: Context, p: Media) -> None: ...

    with pytest.raises(InvalidInput, match="no stage of the pipeline would run"):
        packhorse.run(pipeline, Media())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (contains("kind", "ocr"), "when= uses the unknown parameter 'kind'. Parameters: kinds, words, sound, token"),
        (not_(any_(is_set("nope"))), "when= uses the unknown parameter 'nope'"),
        (is_set("token"), "when names 'token', which is secret"),
        (equals("kinds", object()), "is no JSON value"),
        (any_(), "any_ takes conditions, and at least one"),
        ("kinds", "when takes a condition such as"),
    ],
)
def test_condition_that_cannot_be_decided_is_refused_with_its_place(wrong: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=rf"{message}.* See .*test_conditions.py:\d+"):

        @Pipeline("media", Media).stage(when=wrong)
        def work(ctx: Context, p: Media) -> None: ...


@pytest.mark.parametrize("wrong", ["", " ", None, "a\0b"])
def test_skip_takes_a_reason(wrong: Any) -> None:
    with pytest.raises(ValueError, match="Skip takes a reason"):
        Skip(wrong)
