"""What a stage says in a child: not too often, the last word always, and files only from its scratch."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from packhorse.define.files import File
from packhorse.define.stages import Permanent
from packhorse.errors import InvalidInput
from packhorse.worker.child.context import EVERY, ChildContext
from packhorse.worker.child.messages import Document, FromChild, Made, Moved, Run, to_frame
from tests.contract.stores import Clock


def run_in(scratch: Path) -> Run:
    return Run(7, "convert/onnx#12ab", "job", "ann", "trace", 2, 0, str(scratch), Document(b"{}"))


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture
def sent() -> list[FromChild]:
    return []


@pytest.fixture
def ctx(scratch: Path, sent: list[FromChild], clock: Clock) -> ChildContext:
    return ChildContext(run_in(scratch), sent.append, clock)


def test_a_stage_knows_who_it_runs_for(ctx: ChildContext) -> None:
    assert (ctx.job_id, ctx.user_id, ctx.trace_id, ctx.attempt) == ("job", "ann", "trace", 2)
    assert ctx.log.name == "stage.convert.onnx"
    assert not ctx.cancelled


def test_a_stage_of_a_scheduled_job_knows_its_tick_and_the_run_before(scratch: Path) -> None:
    run = replace(run_in(scratch), schedule="nightly", tick=1_767_225_600.0, previous=b'{"etag":"1"}')

    ctx = ChildContext(run, lambda _: None)

    assert (ctx.schedule_id, ctx.tick) == ("nightly", datetime(2026, 1, 1, tzinfo=UTC))
    assert ctx.previous == {"etag": "1"}


def test_a_stage_of_a_submitted_job_has_neither(ctx: ChildContext) -> None:
    assert (ctx.schedule_id, ctx.tick, ctx.previous) == (None, None, None)


def test_the_scratch_folder_is_made_when_it_is_used(ctx: ChildContext, scratch: Path) -> None:
    before = scratch.exists()

    assert ctx.scratch == scratch
    assert scratch.is_dir()
    assert not before


# Progress


def test_reports_of_one_moment_are_one_message_and_the_last_arrives(
    ctx: ChildContext, sent: list[FromChild], clock: Clock
) -> None:
    for n in range(100):
        ctx.progress(n, 100, f"step {n}")
        clock.forward(EVERY / 10)
    ctx.flush()

    assert 9 <= len(sent) <= 12
    assert sent[0] == Moved(7, 0.0, 100.0, "step 0")
    assert sent[-1] == Moved(7, 99.0, 100.0, "step 99")


def test_a_report_that_was_not_held_back_is_not_sent_twice(ctx: ChildContext, sent: list[FromChild]) -> None:
    ctx.progress(1)
    ctx.flush()
    ctx.flush()

    assert sent == [Moved(7, 1.0, None, "")]


def test_a_report_that_was_overtaken_is_not_sent_after_the_newer_one(
    ctx: ChildContext, sent: list[FromChild], clock: Clock
) -> None:
    ctx.progress(1)
    ctx.progress(2)
    clock.forward(EVERY)
    ctx.progress(3)
    ctx.flush()

    assert [message.current for message in sent if isinstance(message, Moved)] == [1.0, 3.0]


def test_the_first_report_goes_out_at_once_however_young_the_machine_is(scratch: Path, sent: list[FromChild]) -> None:
    ctx = ChildContext(run_in(scratch), sent.append, Clock(0.0))

    ctx.progress(1)

    assert len(sent) == 1


def test_text_that_has_no_bytes_can_be_told_all_the_same(ctx: ChildContext, sent: list[FromChild]) -> None:
    ctx.progress(1, message="caf\udce9.txt")

    [message] = sent
    assert to_frame(message)


# Files


def test_a_stage_publishes_only_so_many_artifacts(scratch: Path, sent: list[FromChild]) -> None:
    ctx = ChildContext(replace(run_in(scratch), artifacts=2), sent.append)
    ctx.artifact("one", b"1")
    ctx.artifact("two", b"2")

    with pytest.raises(Permanent, match="at most 2 files") as refused:
        ctx.artifact("three", b"3")

    assert refused.value.code == "TOO_MANY_ARTIFACTS"
    assert [message.name for message in sent if isinstance(message, Made)] == ["one", "two"]


def test_an_artifact_of_bytes_is_written_into_scratch(ctx: ChildContext, sent: list[FromChild], scratch: Path) -> None:
    ctx.artifact("report.html", b"<p>")

    [made] = sent
    assert isinstance(made, Made)
    assert (made.call, made.name) == (7, "report.html")
    assert Path(made.path).read_bytes() == b"<p>"
    assert Path(made.path).is_relative_to(scratch)


@pytest.mark.parametrize("kind", [str, Path])
def test_an_artifact_that_lies_in_scratch_is_taken_from_there(
    ctx: ChildContext, sent: list[FromChild], kind: type[str] | type[Path]
) -> None:
    path = ctx.scratch / "a.txt"
    path.write_text("content")

    ctx.artifact("b.txt", kind(path))

    assert sent == [Made(7, "b.txt", str(path.resolve()))]


def test_a_file_outside_scratch_is_copied_in(
    ctx: ChildContext, sent: list[FromChild], tmp_path: Path, scratch: Path
) -> None:
    (tmp_path / "outside.txt").write_text("content")

    ctx.artifact("b.txt", tmp_path / "outside.txt")

    [made] = sent
    assert isinstance(made, Made)
    assert Path(made.path).is_relative_to(scratch)
    assert Path(made.path).read_text() == "content"


def test_a_link_in_scratch_to_a_file_outside_is_copied_in(ctx: ChildContext, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("content")
    (ctx.scratch / "link.txt").symlink_to(tmp_path / "outside.txt")

    kept = ctx.keep(File(ctx.scratch / "link.txt"))

    assert kept.resolve().is_relative_to(ctx.scratch.resolve())
    assert kept.read_text() == "content"


def test_two_artifacts_of_one_name_do_not_meet(ctx: ChildContext, sent: list[FromChild]) -> None:
    ctx.artifact("a.txt", b"one")
    ctx.artifact("a.txt", b"two")

    assert [Path(made.path).read_bytes() for made in sent if isinstance(made, Made)] == [b"one", b"two"]


def test_an_artifact_keeps_its_folders(ctx: ChildContext, sent: list[FromChild], tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("two")

    ctx.artifact("a/b.txt", b"one")
    ctx.artifact("a/c/d.txt", tmp_path / "outside.txt")

    assert [made.name for made in sent if isinstance(made, Made)] == ["a/b.txt", "a/c/d.txt"]
    assert [Path(made.path).read_bytes() for made in sent if isinstance(made, Made)] == [b"one", b"two"]


@pytest.mark.parametrize(
    "name", ["../../a.txt", "a/../b.txt", "/etc/a.txt", "\\\\host\\a.txt", "C:\\a.txt", "a/" * 600]
)
def test_an_artifact_whose_name_leads_elsewhere_is_refused(ctx: ChildContext, sent: list[FromChild], name: str) -> None:
    with pytest.raises(InvalidInput, match="artifact"):
        ctx.artifact(name, b"one")

    assert sent == []


def test_each_part_of_an_artifacts_name_is_made_harmless(ctx: ChildContext, sent: list[FromChild]) -> None:
    ctx.artifact("./.git//a\x00\u202e.txt", b"one")

    [made] = sent
    assert isinstance(made, Made)
    assert made.name == "git/a.txt"


def test_an_artifact_that_is_not_there_is_an_error_of_the_stage(ctx: ChildContext, sent: list[FromChild]) -> None:
    with pytest.raises(FileNotFoundError):
        ctx.artifact("a.txt", ctx.scratch / "nothing")

    assert sent == []


def test_a_file_whose_path_has_no_text_can_be_returned_all_the_same(ctx: ChildContext) -> None:
    odd = Path(os.fsdecode(os.fsencode(ctx.scratch) + b"/caf\xe9.txt"))
    odd.write_text("content")

    kept = ctx.keep(File(odd))

    assert str(kept).encode()
    assert kept.read_text() == "content"
