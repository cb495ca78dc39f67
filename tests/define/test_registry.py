from __future__ import annotations

import pytest

from packhorse.define import Code, Context, JobDecorator, Params, Pipeline
from packhorse.errors import DefinitionError


def test_stages_are_found_by_kind_even_if_they_came_later() -> None:
    code = Code("edge")
    convert = Pipeline("convert", Params)
    code.add(convert)

    @convert.stage
    def onnx(ctx: Context, p: Params) -> int:
        return 1

    @JobDecorator(code.add)
    def add(a: int) -> int:
        return a

    assert code.by_kind == {onnx.plan.kind: (convert, onnx), add.stage.plan.kind: (add.pipeline, add.stage)}
    assert list(code.pipelines) == ["convert", "add"]
    assert [(found.app, found.pipeline) for found in code.definitions()] == [("edge", "convert"), ("edge", "add")]


@pytest.mark.parametrize("name", ["convert", "Convert"])
def test_two_pipelines_of_one_name_are_refused_with_both_places(name: str) -> None:
    code = Code("edge")
    first = Pipeline("convert", Params)
    code.add(first)
    code.add(first)

    with pytest.raises(DefinitionError) as refused:
        code.add(second := Pipeline(name, Params))

    assert first.place in refused.value.message
    assert refused.value.message.endswith(second.place)
    assert first.place != second.place


def test_an_app_has_a_name_like_everything_else() -> None:
    with pytest.raises(DefinitionError, match=r"App: 'my app' is not a valid name.*test_registry.py:\d+$"):
        Code("my app")
