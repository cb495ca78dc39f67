"""The SDK for pipelines: plain typed functions. Light to import, because every child process imports it."""

from packhorse.core.conditions import Condition, all_, any_, contains, equals, is_set, not_
from packhorse.define.files import Accepts, File, sanitize_name
from packhorse.define.options import AlertRate, Limit, Revive
from packhorse.define.params import Choices, Params, Schema
from packhorse.define.pipelines import Pipeline
from packhorse.define.registry import Code
from packhorse.define.secrets import Secret
from packhorse.define.signature import Function, JobDecorator
from packhorse.define.stages import Context, Failed, Later, Permanent, Skip, Stage, each, gather, needs
from packhorse.define.submit import JobHandle, JobSnapshot, Options, Submitter

__all__ = [
    "Accepts",
    "AlertRate",
    "Choices",
    "Code",
    "Condition",
    "Context",
    "Failed",
    "File",
    "Function",
    "JobDecorator",
    "JobHandle",
    "JobSnapshot",
    "Later",
    "Limit",
    "Options",
    "Params",
    "Permanent",
    "Pipeline",
    "Revive",
    "Schema",
    "Secret",
    "Skip",
    "Stage",
    "Submitter",
    "all_",
    "any_",
    "contains",
    "each",
    "equals",
    "gather",
    "is_set",
    "needs",
    "not_",
    "sanitize_name",
]
