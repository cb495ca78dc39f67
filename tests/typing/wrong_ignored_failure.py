"""A gather of a stage that tolerates failures, into a list without `Failed`."""

from packhorse.define import Context, File, Params, Pipeline, each, gather

convert = Pipeline("convert", Params)


@convert.stage
def split(ctx: Context, p: Params) -> list[File]:
    return []


@convert.stage(tolerate=0.05)
def work(ctx: Context, p: Params, one: File = each(split)) -> int:
    return 1


@convert.stage
def join(ctx: Context, p: Params, all: list[int] = gather(work)) -> int:  # error: assignment
    return sum(all)
