"""One call of a stage: what it gets, and what its end is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packhorse import App, Context, File, Later, Params, Permanent, Skip, each, gather, needs
from packhorse.errors import InvalidInput
from packhorse.worker.child.call import DETAIL, Outcome, bind_stage, end_with, end_with_error
from packhorse.worker.child.context import ChildContext
from packhorse.worker.child.messages import Argument, Document, Postponed, Raised, Returned, Run, Skipped, to_frame

app = App("calls")


class Text(Params):
    text: File
    times: int = 1


class Nothing(Params):
    pass


books = app.pipeline("books", Text)


@books.stage
def split(ctx: Context, p: Text) -> list[str]:
    return p.text.read_text().split() * p.times


@books.stage
def page(ctx: Context, p: Text, word: str = each(split)) -> File:
    path = ctx.scratch / "page.txt"
    path.write_text(word)
    return File(path)


@books.stage
def bind(ctx: Context, p: Text, words: list[str] = needs(split), pages: list[File] = gather(page)) -> str:
    return " ".join([*words, *(page.read_text() for page in pages)])


anything = app.pipeline("anything", Nothing)


@anything.stage(name="it")
def it(ctx: Context, p: Nothing) -> Any: ...


def call(stage: str, scratch: Path, parameters: Document, *arguments: Argument, limit: int = 1000) -> Outcome:
    """As a child does it."""
    pipeline, code = next(pair for pair in app.code.by_kind.values() if pair[1].name == stage)
    run = Run(7, code.plan.kind, "job", "ann", "trace", 1, 0, str(scratch), parameters, arguments, limit)
    context = ChildContext(run, lambda _: None)
    try:
        return end_with(code, run, context, bind_stage(pipeline, code, run, context)())
    except BaseException as error:
        return end_with_error(run, error)


def end(scratch: Path, value: object, limit: int = 1000) -> Outcome:
    """What becomes of a value that a stage returned."""
    _, code = next(pair for pair in app.code.by_kind.values() if pair[1].name == "it")
    run = Run(7, code.plan.kind, "job", "ann", "trace", 1, 0, str(scratch), Document(b"{}"), (), limit)
    try:
        return end_with(code, run, ChildContext(run, lambda _: None), value)
    except BaseException as error:
        return end_with_error(run, error)


def failed(error: BaseException) -> Raised:
    """What becomes of an error that a stage raised."""
    try:
        raise error
    except BaseException as caught:
        return end_with_error(Run(7, "", "", "", "", 1, 0, "", Document(b"{}")), caught)


def document(tmp_path: Path, content: str = "one two", times: str = "1") -> Document:
    (tmp_path / "in.txt").write_text(content)
    return Document(f'{{"text":{{"$file":0}},"times":{times}}}'.encode(), ((str(tmp_path / "in.txt"), "in.txt"),))


# What it gets


def test_a_stage_gets_its_parameters_with_their_files(tmp_path: Path) -> None:
    outcome = call("split", tmp_path, document(tmp_path, times="2"))

    assert outcome == Returned(7, Document(b'["one","two","one","two"]'), 4)


def test_a_stage_gets_what_others_returned(tmp_path: Path) -> None:
    for n in (1, 2):
        (tmp_path / f"{n}.txt").write_text(f"page{n}")
    pages = [Document(b'{"$file":0}', ((str(tmp_path / f"{n}.txt"), "page.txt"),)) for n in (1, 2)]

    outcome = call(
        "bind",
        tmp_path,
        document(tmp_path),
        Argument("words", "needs", (Document(b'["one","two"]'),)),
        Argument("pages", "gather", tuple(pages)),
    )

    assert outcome == Returned(7, Document(b'"one two page1 page2"'), None)


def test_a_stage_gets_one_element(tmp_path: Path) -> None:
    outcome = call("page", tmp_path, document(tmp_path), Argument("word", "each", (Document(b'"one"'),)))

    assert isinstance(outcome, Returned)
    [(path, name)] = outcome.result.files
    assert (Path(path).read_text(), name) == ("one", "page.txt")


def test_parameters_that_do_not_fit_are_invalid_and_never_tried_again(tmp_path: Path) -> None:
    outcome = call("split", tmp_path, document(tmp_path, times='"many"'))

    assert isinstance(outcome, Raised)
    assert (outcome.code, outcome.permanent) == ("INVALID", True)
    assert "times" in outcome.message


# What it returns


def test_later_is_no_result(tmp_path: Path) -> None:
    assert end(tmp_path, Later(2.5)) == Postponed(7, 2.5)


def test_skip_is_no_result(tmp_path: Path) -> None:
    assert end(tmp_path, Skip("no sound")) == Skipped(7, "no sound")


@pytest.mark.parametrize(
    ("value", "data", "width"),
    [
        (None, b"null", None),
        ("x", b'"x"', None),
        ([], b"[]", 0),
        ([1, [2, 3]], b"[1,[2,3]]", 2),
        ({"a": 1}, b'{"a":1}', None),
    ],
)
def test_a_value_becomes_json_and_a_list_tells_its_length(
    tmp_path: Path, value: object, data: bytes, width: int | None
) -> None:
    assert end(tmp_path, value) == Returned(7, Document(data), width)


def test_a_result_up_to_the_limit_is_kept(tmp_path: Path) -> None:
    assert end(tmp_path, "x" * 98, limit=100) == Returned(7, Document(b'"' + b"x" * 98 + b'"'), None)


@pytest.mark.parametrize("is_used", [False, True])
def test_it_is_told_whether_the_stage_has_used_its_folder(tmp_path: Path, is_used: bool) -> None:
    """Else nobody would look whether there is one to be removed."""
    _, code = next(pair for pair in app.code.by_kind.values() if pair[1].name == "it")
    run = Run(7, code.plan.kind, "job", "ann", "trace", 1, 0, str(tmp_path / "own"), Document(b"{}"), ())
    context = ChildContext(run, lambda _: None)

    if is_used:
        (context.scratch / "left").touch()

    assert end_with(code, run, context, None) == Returned(7, Document(b"null"), None, has_scratch=is_used)


def test_a_result_over_the_limit_fails_for_good_and_says_what_to_do(tmp_path: Path) -> None:
    outcome = end(tmp_path, "x" * 99, limit=100)

    assert isinstance(outcome, Raised)
    assert (outcome.code, outcome.permanent) == ("RESULT_TOO_LARGE", True)
    assert "101 bytes" in outcome.message
    assert "File" in outcome.message


def test_a_result_with_too_many_files_fails_for_good(tmp_path: Path) -> None:
    paths = [tmp_path / str(n) for n in range(3)]
    for path in paths:
        path.touch()
    _, code = next(pair for pair in app.code.by_kind.values() if pair[1].name == "it")
    run = Run(7, code.plan.kind, "job", "ann", "trace", 1, 0, str(tmp_path), Document(b"{}"), artifacts=2)

    outcome = end_with(code, run, ChildContext(run, lambda _: None), [File(path) for path in paths])

    assert isinstance(outcome, Raised)
    assert (outcome.code, outcome.permanent) == ("TOO_MANY_ARTIFACTS", True)


def test_a_returned_file_from_outside_scratch_is_copied_in(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (tmp_path / "outside.txt").write_text("content")

    outcome = end(scratch, {"made": File(tmp_path / "outside.txt", "b.txt")})

    assert isinstance(outcome, Returned)
    [(path, name)] = outcome.result.files
    assert outcome.result.value == b'{"made":{"$file":0}}'
    assert (Path(path).read_text(), name) == ("content", "b.txt")
    assert Path(path).is_relative_to(scratch)


@pytest.mark.parametrize("value", [object(), File("/nothing/here"), {1: {2}, "a": b"\xff", "b": object()}, "\udce9"])
def test_what_cannot_be_kept_fails_for_good(tmp_path: Path, value: object) -> None:
    outcome = end(tmp_path, value)

    assert isinstance(outcome, Raised)
    assert (outcome.code, outcome.permanent) == ("INVALID", True)


def test_a_coroutine_that_nobody_awaited_is_an_error(tmp_path: Path) -> None:
    async def forgotten() -> None: ...

    coroutine = forgotten()
    outcome = end(tmp_path, coroutine)
    coroutine.close()

    assert isinstance(outcome, Raised)
    assert "async def" in outcome.message


# What it raises


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this fails")


@pytest.mark.parametrize(
    ("error", "code", "message", "permanent"),
    [
        (ValueError("bad"), "EXCEPTION", "ValueError: bad", False),
        (KeyError(), "EXCEPTION", "KeyError", False),
        (Permanent("no use", code="NO_USE"), "NO_USE", "no use", True),
        (Permanent("no use"), "PERMANENT", "no use", True),
        (InvalidInput("bad speed", field="speed"), "INVALID", "speed: bad speed", True),
        (InvalidInput("bad all over"), "INVALID", "bad all over", True),
        (MemoryError(), "OUT_OF_MEMORY", "MemoryError", False),
        (SystemExit(3), "EXCEPTION", "The stage called exit(3).", False),
        (KeyboardInterrupt(), "EXCEPTION", "KeyboardInterrupt", False),
    ],
)
def test_an_error_is_told_by_its_code(error: BaseException, code: str, message: str, permanent: bool) -> None:
    outcome = failed(error)

    assert (outcome.call, outcome.code, outcome.message, outcome.permanent) == (7, code, message, permanent)
    assert type(error).__name__ in outcome.detail


@pytest.mark.parametrize(
    "error",
    [
        Permanent(ValueError("an error as the message"), code=404),  # type: ignore[arg-type]
        ValueError("caf\udce9.txt"),
        Permanent("caf\udce9.txt", code="\udce9"),
        InvalidInput("caf\udce9.txt", field="text"),
        Odd(),
        ValueError("x" * 100_000),
    ],
    ids=["no text", "no bytes", "permanent without bytes", "invalid without bytes", "no words", "long"],
)
def test_whatever_a_stage_raises_can_be_told(error: BaseException) -> None:
    outcome = failed(error)

    assert len(to_frame(outcome)) < 20_000
    assert outcome.permanent == isinstance(error, Permanent | InvalidInput)
    assert len(outcome.message) <= 2000


def test_of_a_long_traceback_the_end_is_kept() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("the end")
        (deep if n % 2 else deeper)(n - 1)

    deeper: Callable[[int], None] = deep

    with pytest.raises(ValueError) as caught:
        deep(300)
    outcome = failed(caught.value)

    assert len(outcome.detail) <= DETAIL
    assert outcome.detail.endswith("ValueError: the end\n")
