"""A stage that takes a number from one that returns a file."""

from packhorse.define import Context, File, Params, Pipeline, needs

convert = Pipeline("convert", Params)


@convert.stage
async def onnx(ctx: Context, p: Params) -> File:
    return File("a")


@convert.stage
def bie(ctx: Context, p: Params, model: int = needs(onnx)) -> File:  # error: assignment
    return File("b")
