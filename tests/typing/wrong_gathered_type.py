"""A gather into one value instead of a list."""

from packhorse.define import Context, File, Params, Pipeline, each, gather

convert = Pipeline("convert", Params)


@convert.stage
def split(ctx: Context, p: Params) -> list[File]:
    return []


@convert.stage
def work(ctx: Context, p: Params, one: File = each(split)) -> int:
    return 1


@convert.stage
def join(ctx: Context, p: Params, all: int = gather(work)) -> int:  # error: assignment
    return all
