"""An each over a stage that returns no list."""

from packhorse.define import Context, File, Params, Pipeline, each

convert = Pipeline("convert", Params)


@convert.stage
def onnx(ctx: Context, p: Params) -> File:
    return File("a")


@convert.stage
def bie(ctx: Context, p: Params, model: File = each(onnx)) -> File:  # error: arg-type
    return File("b")
