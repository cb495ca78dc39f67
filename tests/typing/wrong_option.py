"""A misspelt option of a stage."""

from packhorse.define import Params, Pipeline

convert = Pipeline("convert", Params)
convert.stage(timout="10m")  # error: call-overload
