"""The mission with packhorse: all code that a team writes."""

from bench.peers.side.mission_work import transform
from packhorse import App, Context, File, Params, needs

app = App("mission")


class Mission(Params):
    file: File
    seconds: float = 0.0


mission = app.pipeline("mission", Mission)


def convert(ctx: Context, p: Mission, file: File) -> File:
    transform(file.path, ctx.scratch / "made", p.seconds, ctx.progress)
    return File(ctx.scratch / "made")


@mission.stage
def first(ctx: Context, p: Mission) -> File:
    return convert(ctx, p, p.file)


@mission.stage
def second(ctx: Context, p: Mission, file: File = needs(first)) -> File:
    return convert(ctx, p, file)


@mission.stage
def third(ctx: Context, p: Mission, file: File = needs(second)) -> File:
    return convert(ctx, p, file)
