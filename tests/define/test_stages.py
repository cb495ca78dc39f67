from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from packhorse.core.plan import Need
from packhorse.define import Context, File, Later, Params, Pipeline, Stage, each, gather, needs
from packhorse.define.values import encode_result
from packhorse.errors import DefinitionError, InvalidInput

if TYPE_CHECKING:
    from elsewhere import Unseen  # type: ignore[import-not-found]

CTX = cast(Context, None)
P = Params()


class Point(msgspec.Struct):
    x: int


@pytest.fixture
def pipeline() -> Pipeline[Params]:
    return Pipeline("convert", Params)


@pytest.fixture
def split(pipeline: Pipeline[Params]) -> Stage[..., list[Point]]:
    @pipeline.stage
    def split(ctx: Context, p: Params) -> list[Point]:
        return [Point(1), Point(2)]

    return split


def test_a_stage_can_be_called_as_the_function_it_was(pipeline: Pipeline[Params]) -> None:
    @pipeline.stage
    def onnx(ctx: Context, p: Params) -> File:
        """Checks."""
        return File("a")

    @pipeline.stage(queue="bie")
    def bie(ctx: Context, p: Params, model: File = needs(onnx), *, more: File = needs(onnx)) -> list[File]:
        return [model, more]

    assert onnx(CTX, P) == File("a")
    assert bie(CTX, P, File("x"), more=File("y")) == [File("x"), File("y")]
    assert bie(CTX, P, model=File("x"), more=File("y")) == [File("x"), File("y")]
    assert (onnx.__doc__, inspect.signature(bie)) == ("Checks.", inspect.signature(bie.function))
    with pytest.raises(TypeError, match=r"bie\(\) was called directly, so nothing fills more: pass a value"):
        bie(CTX, P, File("x"))
    with pytest.raises(TypeError, match="nothing fills model, more"):
        bie(CTX, P)


def test_a_stage_may_return_objects_of_any_kind(pipeline: Pipeline[Params]) -> None:
    @pipeline.stage
    def facts(ctx: Context, p: Params) -> dict[str, object]:
        return {"a": [1]}

    @pipeline.stage
    def use(ctx: Context, p: Params, found: dict[str, object] = needs(facts)) -> object:
        return found["a"]

    data, files = encode_result(facts(CTX, P))

    assert use.arguments({"found": [(data, files)]}) == {"found": {"a": [1]}}
    assert use.returns is object


async def test_an_async_stage_is_awaited_like_its_function(pipeline: Pipeline[Params]) -> None:
    @pipeline.stage
    async def fetch(ctx: Context, p: Params) -> int | Later:
        return 3

    assert fetch.is_async
    assert await fetch(CTX, P) == 3
    assert fetch.returns is int


def test_markers_become_needs(pipeline: Pipeline[Params], split: Stage[..., list[Point]]) -> None:
    @pipeline.stage
    def work(ctx: Context, p: Params, all: list[Point] = needs(split), one: Point = each(split)) -> int:
        return one.x

    @pipeline.stage
    def again(ctx: Context, p: Params, n: int = each(gather(work))) -> int:
        return n

    @pipeline.stage
    def join(ctx: Context, p: Params, all: list[int] = gather(again)) -> int:
        return sum(all)

    assert work.plan.needs == (Need("all", "split", "needs"), Need("one", "split", "each"))
    assert again.plan.needs == (Need("n", "work", "each"),)
    assert join.plan.needs == (Need("all", "again", "gather"),)


def test_arguments_are_decoded_as_what_their_stage_returns(
    pipeline: Pipeline[Params], split: Stage[..., list[Point]]
) -> None:
    @pipeline.stage
    def work(ctx: Context, p: Params, all: list[Point] = needs(split), one: Point = each(split)) -> Point:
        return one

    @pipeline.stage
    def join(ctx: Context, p: Params, every: list[Point] = gather(work)) -> Point:
        return every[0]

    whole, part = encode_result([Point(1), Point(2)]), encode_result(Point(2))

    assert work.arguments({"all": [whole], "one": [part]}) == {"all": [Point(1), Point(2)], "one": Point(2)}
    assert join.arguments({"every": [part, part]}) == {"every": [Point(2), Point(2)]}
    with pytest.raises(InvalidInput, match="The result of split does not match its type"):
        work.arguments({"all": [part], "one": [part]})


def test_a_stage_without_a_return_type_returns_anything(pipeline: Pipeline[Params]) -> None:
    @pipeline.stage
    def loose(ctx: Context, p: Params):  # type: ignore[no-untyped-def]
        return [1]

    @pipeline.stage
    def work(ctx: Context, p: Params, one: Any = each(loose)) -> None:
        return None

    assert loose.returns is Any
    assert work.arguments({"one": [encode_result({"a": 1})]}) == {"one": {"a": 1}}


def test_a_type_that_is_local_to_a_function_is_found(pipeline: Pipeline[Params]) -> None:
    class Local(msgspec.Struct):
        x: int

    @pipeline.stage
    def onnx(ctx: Context, p: Params) -> Local:
        return Local(1)

    assert onnx.returns is Local


def test_a_context_that_only_the_type_checker_knows_does_no_harm(pipeline: Pipeline[Params]) -> None:
    @pipeline.stage
    def onnx(ctx: Unseen, p: Params) -> int:
        return 1

    assert onnx.returns is int


def unmarked(ctx: Context, p: Params, size: int) -> None: ...
def defaulted(ctx: Context, p: Params, size: int = 3) -> None: ...
def starred(ctx: Context, p: Params, *rest: int) -> None: ...
def bare(ctx: Context) -> None: ...
def keyword(ctx: Context, *, p: Params) -> None: ...
def other(ctx: Context, p: File) -> None: ...
def unseen(ctx: Context, p: Params) -> Unseen: ...
def array(ctx: Context, p: Params) -> memoryview | complex: ...  # type: ignore[empty-body]
def custom(ctx: Context, p: Params) -> complex: ...  # type: ignore[empty-body]
def mixed(ctx: Context, p: Params) -> int | File: ...  # type: ignore[empty-body]
def yielding(ctx: Context, p: Params) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (unmarked, "Stage 'unmarked' of 'convert': parameter 'size' must be filled by needs(...), each(...) or gather"),
        (defaulted, "parameter 'size' must be filled by"),
        (starred, "parameter 'rest' must be filled by"),
        (bare, "a stage takes the context and the parameters first, as in (ctx, p)"),
        (keyword, "a stage takes the context and the parameters first"),
        (other, "parameter 'p' must be Params, not File"),
        (unseen, "name 'Unseen' is not defined"),
        (array, "Type unions"),
        (custom, "complex is not a type that JSON can carry"),
        (mixed, "Type unions containing a custom type"),
        (yielding, "a stage returns its result, it cannot yield"),
    ],
)
def test_a_definition_that_cannot_work_is_refused_with_its_place(
    pipeline: Pipeline[Params], function: Any, sentence: str
) -> None:
    with pytest.raises(DefinitionError) as refused:
        pipeline.stage(function)

    assert sentence in refused.value.message
    assert refused.value.message.endswith(f"test_stages.py:{function.__code__.co_firstlineno}")
    assert not pipeline.stages


def test_a_need_in_the_place_of_the_parameters_is_refused(
    pipeline: Pipeline[Params], split: Stage[..., list[Point]]
) -> None:
    with pytest.raises(DefinitionError, match="takes the context and the parameters first"):

        @pipeline.stage
        def bie(ctx: Context, model: Any = needs(split)) -> None: ...


def texts(ctx: Context, p: Params) -> str: ...  # type: ignore[empty-body]
def pair(ctx: Context, p: Params) -> tuple[int, str]: ...  # type: ignore[empty-body]
def maybe(ctx: Context, p: Params) -> list[int] | None: ...


@pytest.mark.parametrize("function", [texts, pair, maybe])
def test_each_needs_a_list(pipeline: Pipeline[Params], function: Any) -> None:
    stage = pipeline.stage(function)

    with pytest.raises(
        DefinitionError, match=rf"each\({stage.name}\) needs a stage that returns a list.*test_stages.py:"
    ):
        each(stage)


@pytest.mark.parametrize("hint", [list[int], tuple[int, ...], Sequence[int]])
def test_each_takes_lists_tuples_and_sequences(pipeline: Pipeline[Params], hint: Any) -> None:
    def numbers(ctx: Context, p: Params) -> Any: ...

    numbers.__annotations__["return"] = hint
    marker: Any = each(pipeline.stage(numbers))

    assert marker.item is int


def test_each_of_a_stage_that_runs_per_element_says_what_to_write(
    pipeline: Pipeline[Params], split: Stage[..., list[Point]]
) -> None:
    @pipeline.stage
    def work(ctx: Context, p: Params, one: Point = each(split)) -> list[int]:
        return []

    with pytest.raises(DefinitionError, match=r"write each\(gather\(work\)\)"):
        each(work)


@pytest.mark.parametrize("marker", [needs, each, gather])
def test_markers_take_stages_only(marker: Any) -> None:
    with pytest.raises(
        DefinitionError, match=f"{marker.__name__}.* takes a stage, not function. See .*test_stages.py:"
    ):
        marker(unmarked)
