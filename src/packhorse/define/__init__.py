"""The SDK for pipelines: plain typed functions. Light to import, because every child process imports it."""

from packhorse.define.files import Accepts, File, sanitize_name
from packhorse.define.options import AlertRate, Revive
from packhorse.define.params import Choices, Params, Schema
from packhorse.define.pipelines import Pipeline
from packhorse.define.registry import Code
from packhorse.define.secrets import Secret
from packhorse.define.signature import Function, JobDecorator
from packhorse.define.stages import Context, Failed, Later, Permanent, Stage, each, gather, needs
from packhorse.define.submit import JobHandle, JobSnapshot, Options, Submitter

__all__ = [
    "Accepts",
    "AlertRate",
    "Choices",
    "Code",
    "Context",
    "Failed",
    "File",
    "Function",
    "JobDecorator",
    "JobHandle",
    "JobSnapshot",
    "Later",
    "Options",
    "Params",
    "Permanent",
    "Pipeline",
    "Revive",
    "Schema",
    "Secret",
    "Stage",
    "Submitter",
    "each",
    "gather",
    "needs",
    "sanitize_name",
]
