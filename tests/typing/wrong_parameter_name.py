"""A misspelt parameter."""

from packhorse.define import Params


class Convert(Params):
    platform: str


Convert(platfrom="520")  # error: call-arg
