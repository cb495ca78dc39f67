"""Files on their way into a stage and out of it: never mixed up, and never from outside scratch."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from packhorse.blobs.base import Blobs
from packhorse.core.models import Artifact, Input, Result, Spec, Stored
from packhorse.errors import BlobNotFound, InvalidInput
from packhorse.jobs.artifacts import AT_A_TIME, few_at_a_time, referenced_keys
from packhorse.store.base import Claim, Store
from packhorse.worker.child.messages import Argument, Document, Made
from packhorse.worker.files import Inputs, publish
from tests.contract.blob_fixtures import content
from tests.contract.builders import (
    BOOK,
    ONE,
    claim,
    claim_one,
    each,
    finish,
    gather,
    needs,
    page,
    plan,
    stage,
    submit,
)
from tests.worker.builders import put

FAN = plan(
    stage("split"),
    stage("page", each("split"), needs("split")),
    stage("seal", each("page"), gather("page")),
    stage("book", gather("seal")),
)
FAN_KINDS = [each.kind for each in FAN.stages]


@pytest.fixture
def scratch(folder: Path) -> Path:
    (folder / "scratch" / "token").mkdir(parents=True)
    return folder / "scratch" / "token"


async def stored(blobs: Blobs, key: str, text: str, name: str = "same.txt") -> Stored:
    await put(blobs, key, text.encode())
    return Stored(key, name, len(text), "")


async def file_list(blobs: Blobs, at: str, *texts: str) -> Result:
    """A result that is a list of files, all of one name."""
    files = [await stored(blobs, f"jobs/{at}/{n}", text) for n, text in enumerate(texts)]
    value = ",".join(f'{{"$file":{n}}}' for n in range(len(texts)))
    return Result(f"[{value}]".encode(), tuple(Artifact(f"{at}/{n}", file) for n, file in enumerate(files)))


async def one_file(blobs: Blobs, at: str, text: str) -> Result:
    return Result(b'{"$file":0}', (Artifact(at, await stored(blobs, f"jobs/{at}/0", text)),))


def texts(argument: Argument) -> list[list[str]]:
    """What is in the files of each value, read from where they lie."""
    return [[Path(path).read_text() for path, _ in value.files] for value in argument.values]


async def arguments(blobs: Blobs, scratch: Path, claimed: Claim) -> dict[str, Argument]:
    inputs = Inputs(blobs, scratch)
    found = inputs.arguments(claimed)
    await inputs.fetch()
    return {f"{argument.how} {argument.parameter}": argument for argument in found}


# In


async def test_two_files_of_one_name_lie_in_folders_of_their_own(store: Store, blobs: Blobs, scratch: Path) -> None:
    named = [Input("text", n, await stored(blobs, f"jobs/i/{n}", text)) for n, text in enumerate(["one", "two"])]
    await submit(store, ONE, Spec(b'[{"$file":0},{"$file":1}]', tuple(named)))

    inputs = Inputs(blobs, scratch)
    document = inputs.parameters(await claim_one(store))
    await inputs.fetch()

    paths = [Path(path) for path, _ in document.files]
    assert document.value == b'[{"$file":0},{"$file":1}]'
    assert [name for _, name in document.files] == ["same.txt", "same.txt"]
    assert [path.name for path in paths] == ["same.txt", "same.txt"]
    assert [path.read_text() for path in paths] == ["one", "two"]
    assert all(path.is_relative_to(scratch) for path in paths)


async def test_inputs_and_arguments_of_one_name_do_not_meet(store: Store, blobs: Blobs, scratch: Path) -> None:
    spec = Spec(b'{"$file":0}', (Input("text", 0, await stored(blobs, "jobs/i/0", "came in")),))
    await submit(store, plan(stage("onnx"), stage("bie", needs("onnx"))), spec)
    await finish(store, await claim_one(store), await one_file(blobs, "onnx", "was made"))
    claimed = await claim_one(store)
    inputs = Inputs(blobs, scratch)

    document, [argument] = inputs.parameters(claimed), inputs.arguments(claimed)
    await inputs.fetch()

    assert Path(document.files[0][0]).read_text() == "came in"
    assert texts(argument) == [["was made"]]


async def test_each_element_gets_only_its_own_files(store: Store, blobs: Blobs, scratch: Path) -> None:
    await submit(store, FAN)
    split = await file_list(blobs, "split", "zero", "one", "two")
    await finish(store, await claim_one(store, kinds=FAN_KINDS), split, width=3)
    pages = {claimed.task: claimed for claimed in await claim(store, kinds=FAN_KINDS)}

    found = await arguments(blobs, scratch, pages[page(1)])

    assert texts(found["each split"]) == [["one"]]
    assert found["each split"].values[0].value == b'{"$file":0}'
    assert texts(found["needs split"]) == [["zero", "one", "two"]]
    fetched = [path.read_text() for path in (scratch / "in").rglob("*.txt")]
    assert sorted(fetched) == ["one", "one", "two", "zero"]


async def test_an_element_over_elements_gets_the_result_of_the_same_one(
    store: Store, blobs: Blobs, scratch: Path
) -> None:
    await submit(store, FAN)
    await finish(store, await claim_one(store, kinds=FAN_KINDS), Result(b"[1,2,3]"), width=3)
    for claimed in await claim(store, kinds=FAN_KINDS):
        n = claimed.task.element
        await finish(store, claimed, await one_file(blobs, f"page{n}", f"page {n}"))
    seals = {claimed.task.element: claimed for claimed in await claim(store, kinds=FAN_KINDS)}

    found = await arguments(blobs, scratch, seals[2])

    assert texts(found["each page"]) == [["page 2"]]
    assert texts(found["gather page"]) == [["page 0"], ["page 1"], ["page 2"]]


async def test_gathered_results_come_in_the_order_of_the_elements(store: Store, blobs: Blobs, scratch: Path) -> None:
    fan = plan(stage("split"), stage("page", each("split")), stage("book", gather("page")))
    await submit(store, fan)
    await finish(store, await claim_one(store), Result(b"[]"), width=12)
    for claimed in reversed(await claim(store)):
        await finish(store, claimed, Result(str(claimed.task.element).encode()))
    book = await claim_one(store)

    found = await arguments(blobs, scratch, book)

    assert book.task == BOOK
    assert [int(value.value) for value in found["gather page"].values] == list(range(12))


async def test_an_object_that_is_gone_is_told(store: Store, blobs: Blobs, scratch: Path) -> None:
    gone = Stored("jobs/i/gone", "a.txt", 1, "")
    await submit(store, ONE, Spec(b"{}", (Input("text", 0, gone),)))
    inputs = Inputs(blobs, scratch)
    inputs.parameters(await claim_one(store))

    with pytest.raises(BlobNotFound):
        await inputs.fetch()


class Crowd:
    """Holds whoever comes until as many are there as may be at a time."""

    def __init__(self) -> None:
        self.here = self.most = 0
        self.full = asyncio.Event()

    async def come(self, one: int) -> int:
        self.here += 1
        self.most = max(self.most, self.here)
        if self.here == AT_A_TIME:
            self.full.set()
        try:
            await self.full.wait()
            await asyncio.sleep(0)
        finally:
            self.here -= 1
        return one


async def test_files_travel_side_by_side_but_only_a_few_at_a_time() -> None:
    crowd = Crowd()

    found = await few_at_a_time(crowd.come, range(50))

    assert found == list(range(50))
    assert crowd.most == AT_A_TIME


async def test_the_first_failure_ends_the_others_and_is_raised_when_they_have_ended() -> None:
    crowd = Crowd()

    async def work(one: int) -> int:
        if one == 3:
            raise BlobNotFound(key="x")
        return await crowd.come(one)

    with pytest.raises(BlobNotFound):
        await few_at_a_time(work, range(5))

    assert crowd.here == 0


# Out


async def published(
    store: Store, blobs: Blobs, scratch: Path, *files: tuple[Path, str], made: list[Made] | None = None
) -> Result:
    """The files of the only stage of a job."""
    await submit(store)
    document = Document(b"1", tuple((str(path), name) for path, name in files))
    return await publish(blobs, await claim_one(store), scratch, document, made or [])


def written(path: Path, text: str = "content") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


async def test_a_published_file_lies_under_the_token_of_its_attempt(store: Store, blobs: Blobs, scratch: Path) -> None:
    await submit(store)
    claimed = await claim_one(store)
    document = Document(b'{"$file":0}', ((str(written(scratch / "made.CSV", "a,b")), "made.CSV"),))

    result = await publish(blobs, claimed, scratch, document, [])

    [artifact] = result.files
    assert (result.value, artifact.name, artifact.file.name) == (b'{"$file":0}', "only/made.CSV", "made.CSV")
    assert (artifact.file.size, artifact.file.content_type) == (3, "text/csv")
    assert artifact.file.key == f"jobs/{claimed.job.id}/output/only/{claimed.token}/0.csv"
    assert await content(blobs, artifact.file.key) == b"a,b"
    assert referenced_keys({claimed.task: result}) == {artifact.file.key}


async def test_a_result_without_files_publishes_nothing(store: Store, blobs: Blobs, scratch: Path) -> None:
    result = await published(store, blobs, scratch)

    assert result == Result(b"1")
    assert await blobs.keys("jobs") == []


async def test_files_of_one_name_are_asked_for_by_different_ones(store: Store, blobs: Blobs, scratch: Path) -> None:
    files = [(written(scratch / str(n) / "a.txt", str(n)), "a.txt") for n in range(3)]
    beside = [Made(1, "a.txt", str(written(scratch / "b" / "a.txt", "3"))), Made(1, "a", str(scratch / "b" / "a.txt"))]

    result = await published(store, blobs, scratch, *files, made=beside)

    assert [artifact.name for artifact in result.files] == ["only/a.txt", "only/a-2.txt", "only/a-3.txt"]
    assert [artifact.name for artifact in result.extra] == ["only/a-4.txt", "only/a"]
    assert [await content(blobs, artifact.file.key) for artifact in result.artifacts] == [b"0", b"1", b"2", b"3", b"3"]


async def test_a_name_made_unique_does_not_take_the_name_of_another(store: Store, blobs: Blobs, scratch: Path) -> None:
    names = ["a.txt", "a-2.txt", "a.txt", "b", "b", "b-2"]
    files = [(written(scratch / str(n) / "x"), name) for n, name in enumerate(names)]

    result = await published(store, blobs, scratch, *files)

    found = [artifact.name for artifact in result.files]
    assert len(set(found)) == len(names)
    assert found[:2] == ["only/a.txt", "only/a-2.txt"]


async def test_an_artifact_keeps_its_folder_and_is_unique_within_it(store: Store, blobs: Blobs, scratch: Path) -> None:
    path = str(written(scratch / "x"))
    made = [Made(1, name, path) for name in ("v1.0/a", "v1.0/a", "v1.0/b.txt", "v1.0/b.txt", "a")]

    result = await published(store, blobs, scratch, made=made)

    names = ["only/v1.0/a", "only/v1.0/a-2", "only/v1.0/b.txt", "only/v1.0/b-2.txt", "only/a"]
    assert [artifact.name for artifact in result.extra] == names
    assert [artifact.file.name for artifact in result.extra] == ["a", "a", "b.txt", "b.txt", "a"]


@pytest.mark.parametrize("name", ["../x", "/etc/x"])
async def test_an_artifact_that_a_child_named_elsewhere_is_not_published(
    store: Store, blobs: Blobs, scratch: Path, name: str
) -> None:
    with pytest.raises(InvalidInput):
        await published(store, blobs, scratch, made=[Made(1, name, str(written(scratch / "x")))])

    assert await blobs.keys("jobs") == []


async def test_files_of_an_element_are_named_after_stage_and_index(store: Store, blobs: Blobs, scratch: Path) -> None:
    await submit(store, FAN)
    await finish(store, await claim_one(store, kinds=FAN_KINDS), Result(b"[1,2,3]"), width=3)
    claims = {claimed.task: claimed for claimed in await claim(store, kinds=FAN_KINDS)}
    document = Document(b"1", ((str(written(scratch / "a.txt")), "a.txt"),))

    result = await publish(blobs, claims[page(2)], scratch, document, [])

    assert [artifact.name for artifact in result.files] == ["page/2/a.txt"]


@pytest.mark.parametrize("name", ["../../../../etc/cron.d/x", "/etc/x", "a/b", "..", "\x00", ""])
async def test_a_name_that_a_child_made_up_is_made_harmless(
    store: Store, blobs: Blobs, scratch: Path, name: str
) -> None:
    result = await published(store, blobs, scratch, (written(scratch / "a"), name))

    [artifact] = result.files
    assert artifact.file.name not in ("", ".", "..")
    assert "/" not in artifact.file.name
    assert artifact.name == f"only/{artifact.file.name}"


async def outside(scratch: Path, way: str) -> Path:
    """A file that is not in scratch, by several ways of naming it."""
    secret = written(scratch.parent.parent / "secret.txt", "secret")
    match way:
        case "its path":
            return secret
        case "dots":
            return scratch / ".." / ".." / "secret.txt"
        case "a link to it":
            (scratch / "link.txt").symlink_to(secret)
            return scratch / "link.txt"
        case "a link to its folder":
            (scratch / "link").symlink_to(secret.parent)
            return scratch / "link" / "secret.txt"
        case "a folder that begins like scratch":
            return written(scratch.parent / f"{scratch.name}2" / "secret.txt", "secret")
    raise AssertionError


@pytest.mark.parametrize(
    "way", ["its path", "dots", "a link to it", "a link to its folder", "a folder that begins like scratch"]
)
async def test_a_file_outside_scratch_is_not_published(store: Store, blobs: Blobs, scratch: Path, way: str) -> None:
    path = await outside(scratch, way)
    assert path.read_text() == "secret"

    with pytest.raises(InvalidInput):
        await published(store, blobs, scratch, (path, "a.txt"))

    assert await blobs.keys("jobs") == []


async def test_a_file_outside_scratch_is_not_published_beside_the_result_either(
    store: Store, blobs: Blobs, scratch: Path
) -> None:
    path = await outside(scratch, "a link to it")

    with pytest.raises(InvalidInput):
        await published(store, blobs, scratch, made=[Made(1, "a.txt", str(path))])

    assert await blobs.keys("jobs") == []


async def test_a_link_within_scratch_is_published(store: Store, blobs: Blobs, scratch: Path) -> None:
    written(scratch / "real.txt", "real")
    (scratch / "link.txt").symlink_to("real.txt")

    result = await published(store, blobs, scratch, (scratch / "link.txt", "link.txt"))

    assert await content(blobs, result.files[0].file.key) == b"real"


async def test_what_is_no_file_is_not_published(store: Store, blobs: Blobs, scratch: Path) -> None:
    os.mkfifo(scratch / "pipe")
    (scratch / "folder").mkdir()

    for name in ("pipe", "folder", "nothing"):
        with pytest.raises(InvalidInput):
            await published(store, blobs, scratch, (scratch / name, "a.txt"))

    assert await blobs.keys("jobs") == []
