"""The result of a stage used as what it is not."""

from packhorse.define import Context, File, Params, Pipeline

convert = Pipeline("convert", Params)


@convert.stage
def onnx(ctx: Context, p: Params) -> File:
    return File("a")


print(convert.submit(Params()).result_of(onnx).nmae)  # error: attr-defined
