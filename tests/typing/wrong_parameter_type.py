"""A parameter of another type."""

from packhorse.define import File, Params


class Convert(Params):
    model: File


Convert(model="m.onnx")  # error: arg-type
