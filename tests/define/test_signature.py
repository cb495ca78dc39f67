from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, cast

import pytest
from msgspec import Meta

from packhorse.define import Context, File, Function, JobDecorator, Later, Params, Pipeline
from packhorse.errors import DefinitionError
from tests.define.recorder import Recorder

if TYPE_CHECKING:
    import packhorse.define as ph

CTX = cast(Context, None)


@pytest.fixture
def adopted() -> list[Pipeline[Any]]:
    return []


@pytest.fixture
def job(adopted: list[Pipeline[Any]]) -> JobDecorator:
    return JobDecorator(adopted.append)


def run(function: Function[..., ..., Any], parameters: bytes) -> Any:
    """As a child does."""
    [stage] = function.pipeline.stages.values()
    return stage.function(CTX, function.pipeline.schema.decode(parameters, []), **stage.arguments({}))


def test_a_function_becomes_a_pipeline_of_one_stage(job: JobDecorator, adopted: list[Pipeline[Any]]) -> None:
    @job
    def add(ctx: Context, a: int, b: Annotated[str, Meta(description="what")] = "x") -> int:
        """Adds."""
        return a + len(b)

    assert adopted == [add.pipeline]
    assert [stage.name for stage in add.pipeline.plan().stages] == ["add"]
    assert add.stage.returns is int
    assert add.pipeline.description == "Adds."
    assert add.pipeline.schema.json_schema() == {
        "title": "add",
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "string", "default": "x", "description": "what"},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert run(add, b'{"a": 2, "b": "yyy"}') == 5


def test_calling_it_works_unchanged(job: JobDecorator) -> None:
    @job
    def add(ctx: Context, a: int, b: str = "x") -> int:
        """Adds."""
        return a + len(b)

    assert (add(CTX, 1), add(CTX, a=1, b="yy"), add.__doc__) == (2, 3, "Adds.")


def test_the_context_is_found_by_type_or_name_and_may_be_left_out(job: JobDecorator) -> None:
    @job
    def plain(a: int) -> int:
        return a

    @job
    def typed(c: Context, a: int) -> int:
        return a

    @job
    def named(ctx, a: int) -> int:  # type: ignore[no-untyped-def]
        return a

    @job
    def unseen(c: ph.Context, a: int) -> int:
        return a

    @job
    def nothing() -> int:
        return 1

    for function in (plain, typed, named, unseen):
        assert list(function.pipeline.schema.json_schema()["properties"]) == ["a"]
        assert run(function, b'{"a": 1}') == 1
    assert run(nothing, b"{}") == 1


def test_every_kind_of_parameter_arrives_where_it_belongs(job: JobDecorator) -> None:
    @job
    def all_kinds(ctx: Context, a: int, /, b: int, *, c: int = 3) -> tuple[int, int, int]:
        return a, b, c

    assert run(all_kinds, b'{"a": 1, "b": 2}') == (1, 2, 3)


def test_an_async_function_stays_one(job: JobDecorator) -> None:
    @job
    async def fetch(url: str) -> str | Later:
        return url

    assert fetch.stage.is_async
    assert fetch.stage.returns is str
    assert asyncio.run(run(fetch, b'{"url": "u"}')) == "u"


def test_a_list_as_default_is_not_shared(job: JobDecorator) -> None:
    @job
    def collect(items: list[int] = [1]) -> list[int]:  # noqa: B006
        items.append(2)
        return items

    assert run(collect, b"{}") == [1, 2]
    assert run(collect, b"{}") == [1, 2]


def test_options_are_those_of_stage_and_pipeline(job: JobDecorator) -> None:
    @job(name="sum", queue="gpu", retries=0, keep="1d", one_per="user", description="Sums.")
    def add(a: int) -> int:
        return a

    plan = add.pipeline.plan()

    assert (add.name, plan.pipeline, plan.stages[0].name) == ("sum", "sum", "sum")
    assert (plan.stages[0].queue, plan.stages[0].retries, plan.slot) == ("gpu", 0, "sum")
    assert add.pipeline.description == "Sums."


def test_files_are_parameters_like_others(job: JobDecorator) -> None:
    @job
    def hashed(file: File, more: list[File] | None = None) -> str:
        return file.sha256

    assert hashed.pipeline.schema.files == {"file": "one", "more": "many"}


def untyped(a) -> None: ...  # type: ignore[no-untyped-def]
def starred(*a: int) -> None: ...
def keywords(**a: int) -> None: ...
def late(a: int, ctx: Context) -> None: ...
def complicated(a: complex) -> None: ...
def hidden(a: dict[str, File]) -> None: ...
def _private(a: int) -> None: ...
def yields(a: int) -> Any:
    yield a


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (untyped, "Job 'untyped': parameter 'a' has no type"),
        (starred, "parameter 'a' takes any number of arguments"),
        (keywords, "parameter 'a' takes any number of arguments"),
        (late, "parameter 'ctx' is the context, which comes first"),
        (complicated, "complex is not a type that JSON can carry"),
        (hidden, "files must be parameters of their own"),
        (_private, "'_private' is not a valid name"),
        (yields, "it cannot yield"),
    ],
)
def test_a_signature_that_cannot_be_a_job_is_refused_with_its_place(
    job: JobDecorator, adopted: list[Pipeline[Any]], function: Any, sentence: str
) -> None:
    with pytest.raises(DefinitionError) as refused:
        job(function)

    assert sentence in refused.value.message
    assert refused.value.message.endswith(f"test_signature.py:{function.__code__.co_firstlineno}")
    assert refused.value.message.count("See ") == 1
    assert not adopted


def test_submitting_takes_the_functions_own_arguments(job: JobDecorator) -> None:
    @job
    def add(ctx: Context, a: int, b: str = "x") -> int:
        return a

    recorder = add.pipeline.submitter = Recorder()

    add.submit(1)
    add.using(user="ann", priority=3).submit(a=2, b="y")

    params = add.pipeline.params
    assert [(call.params, call.options.user, call.options.priority) for call in recorder.calls] == [
        (params(a=1), "local", 0),
        (params(a=2, b="y"), "ann", 3),
    ]
    assert isinstance(recorder.calls[0].params, Params)
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        add.submit()  # type: ignore[call-arg]


async def test_submitting_from_a_coroutine_is_the_same(job: JobDecorator) -> None:
    @job
    async def add(a: int) -> int:
        return a

    recorder = add.pipeline.submitter = Recorder()

    await add.using(delay="1m").a_submit(1)

    assert [(call.params, call.options.delay) for call in recorder.calls] == [(add.pipeline.params(a=1), 60)]
