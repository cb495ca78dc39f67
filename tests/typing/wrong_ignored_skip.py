"""An optional need, into a parameter that does not take None."""

from packhorse.define import Context, Params, Pipeline, Skip, needs

convert = Pipeline("convert", Params)


@convert.stage
def listen(ctx: Context, p: Params) -> str | Skip:
    return Skip("no audio track")


@convert.stage
def join(ctx: Context, p: Params, text: str = needs(listen, optional=True)) -> int:  # error: assignment
    return len(text)
