"""A team's file as it should be: mypy has nothing to say about it, and sees every type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, assert_type

from packhorse import AsyncClient, Client
from packhorse.define import (
    Choices,
    Context,
    Failed,
    File,
    JobDecorator,
    JobHandle,
    Later,
    Params,
    Permanent,
    Pipeline,
    Skip,
    all_,
    any_,
    contains,
    each,
    equals,
    gather,
    is_set,
    needs,
    not_,
)


def processors() -> list[str]:
    return ["npu", "cpu"]


class Convert(Params):
    ref_images: list[File] = []  # noqa: RUF012  (each object gets a list of its own)
    model: File
    platform: Literal["520", "720"] = "520"
    processor: Annotated[str, Choices(processors)] = "cpu"


@dataclass
class Frame:
    index: int
    image: File


convert = Pipeline("convert", Convert, one_per="user", keep={"completed": "30d"}, deadline="2h")


@convert.stage(queue="onnx", timeout="10m", memory="2GiB", backoff=("1s", "1m"))
def onnx(ctx: Context, p: Convert) -> File:
    ctx.progress(1, 2, "checking")
    assert_type(p.processor, str)
    if not p.model.size:
        raise Permanent("The model is empty.", code="EMPTY")
    return p.model


@convert.stage
async def frames(ctx: Context, p: Convert, model: File = needs(onnx)) -> list[Frame] | Later:
    for image in ctx.track(p.ref_images, message="reading"):
        assert_type(image, File)
    return Later(30) if ctx.attempt == 1 else []


@convert.stage(retries=0)
def scaled(ctx: Context, p: Convert, frame: Frame = each(frames), model: File = needs(onnx)) -> tuple[int, File]:
    return frame.index, frame.image


@convert.stage
async def checked(ctx: Context, p: Convert, one: tuple[int, File] = each(gather(scaled))) -> bool:
    return one[0] > 0


@convert.stage
def report(
    ctx: Context, p: Convert, *, all: list[tuple[int, File]] = gather(scaled), good: list[bool] = gather(checked)
) -> dict[str, int]:
    return {"frames": len(all)}


@convert.stage(when=any_(not_(is_set("ref_images")), all_(contains("platform", "5"), equals("processor", "npu"))))
def listened(ctx: Context, p: Convert) -> str | Skip:
    return "speech" if p.ref_images else Skip("no audio track")


@convert.stage
async def titled(ctx: Context, p: Convert, text: str | None = needs(listened, optional=True)) -> int | Later | Skip:
    return len(text or "")


assert_type(needs(listened), str)
assert_type(needs(listened, optional=True), str | None)
assert_type(needs(titled), int)
assert_type(needs(titled, optional=True), int | None)


@convert.stage(tolerate=0.05, retries=1)
def measured(ctx: Context, p: Convert, frame: Frame = each(frames)) -> float:
    return 0.5


@convert.stage(tolerate=3)
async def rated(ctx: Context, p: Convert, one: float = each(gather(measured))) -> str | Later:
    return "good"


@convert.stage
def mean(ctx: Context, p: Convert, all: list[float | Failed] = gather(measured)) -> float:
    return sum(each for each in all if not isinstance(each, Failed))


assert_type(gather(measured), list[float | Failed])
assert_type(gather(rated), list[str | Failed])
assert_type(each(gather(rated)), str)
assert_type(needs(onnx), File)
assert_type(needs(frames), list[Frame])
assert_type(each(frames), Frame)
assert_type(gather(scaled), list[tuple[int, File]])
assert_type(gather(checked), list[bool])
assert_type(each(gather(scaled)), tuple[int, File])


def adopt(pipeline: Pipeline[Any]) -> None: ...


job = JobDecorator(adopt)


@job
def add(ctx: Context, a: int, b: str = "x") -> float:
    return a + len(b)


@job(queue="gpu", keep="1d")
async def fetch(url: str, *, limit: int = 3) -> list[str] | Later:
    return [url] * limit


async def test_by_calling(ctx: Context) -> None:
    p = Convert(model=File("m.onnx"))
    assert_type(onnx(ctx, p), File)
    assert_type(await frames(ctx, p, File("x.onnx")), list[Frame] | Later)
    assert_type(scaled(ctx, p, frame=Frame(0, File("a.png")), model=File("x.onnx")), tuple[int, File])
    assert_type(add(ctx, 1), float)
    assert_type(await fetch("http://a"), list[str] | Later)


def submit() -> None:
    handle = convert.submit(Convert(model=File("m.onnx")), user="ann", priority=3, delay="5m", metadata={"a": 1})
    assert_type(handle, JobHandle[Any])
    assert_type(handle.result_of(onnx), File)
    assert_type(handle.result_of(frames), list[Frame])
    assert_type(handle.result_of(gather(scaled)), list[tuple[int, File]])
    assert_type(handle.result_of(gather(checked)), list[bool])
    assert_type(add.submit(1, b="y"), JobHandle[float])
    assert_type(add.using(user="ann").submit(a=1).wait(timeout=5).result, float)
    assert_type(fetch.submit("http://a").wait().result, list[str])
    assert_type(convert.find("id", user="ann"), JobHandle[Any])
    assert_type([seen.result for seen in add.find("id").watch()], list[float])
    assert_type(fetch.find("id").wait().result, list[str])


async def submit_async() -> None:
    handle = await convert.a_submit(Convert(model=File("m.onnx")), key="once")
    assert_type(await handle.a_result_of(frames), list[Frame])
    assert_type(await handle.a_result_of(gather(scaled)), list[tuple[int, File]])
    async for event in handle.a_events():
        assert_type(event.n, int)
    assert_type((await (await fetch.using(priority=1).a_submit("http://a", limit=2)).a_wait()).result, list[str])


def call(client: Client) -> None:
    assert_type(client.submit("convert", user="ann"), dict[str, Any])
    assert_type(client.list(user="ann", limit=3), dict[str, Any])
    assert_type(client.artifact("j1", "onnx/m.onnx", to="."), Path)
    for job in client.iterate(status="failed"):
        assert_type(job, dict[str, Any])


async def call_async(client: AsyncClient) -> None:
    assert_type(await client.submit("convert", user="ann"), dict[str, Any])
    assert_type(await client.artifact("j1", "onnx/m.onnx", to="."), Path)
    async for event in client.events("j1"):
        assert_type(event, dict[str, Any])
