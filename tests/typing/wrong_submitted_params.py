"""A submit with another pipeline's parameters."""

from packhorse.define import Params, Pipeline


class Convert(Params):
    platform: str


convert = Pipeline("convert", Convert)
convert.submit(Params())  # error: arg-type
