"""A stage of another pipeline's parameters."""

from packhorse.define import Context, Params, Pipeline


class Convert(Params):
    platform: str


class Speak(Params):
    text: str


convert = Pipeline("convert", Convert)


@convert.stage(queue="onnx")  # error: arg-type
def onnx(ctx: Context, p: Speak) -> int:
    return 1
