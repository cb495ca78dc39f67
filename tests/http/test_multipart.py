"""Reading multipart piece by piece: the same however it is cut, and never more than a piece in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.errors import Malformed, TooLarge, TooSlow, UnsupportedMedia
from packhorse.http import requests
from packhorse.http.form import LONGEST_EPILOGUE, LONGEST_HEADER, MOST_PARTS, Multipart, boundary_of
from packhorse.http.requests import Body
from packhorse.settings import Settings
from tests.tiers import examples

Found = list[tuple[str, str | None, bytes]]

KIND = "multipart/form-data; boundary=XX"


def part(name: str, content: bytes, filename: str | None = None, more: str = "") -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    head = f'--XX\r\nContent-Disposition: form-data; name="{name}"{file}\r\n{more}\r\n'
    return head.encode() + content + b"\r\n"


END = b"--XX--\r\n"


def receiving(pieces: Sequence[bytes], last: str = "http.request") -> Any:
    messages: list[Any] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": last, "body": b"", "more_body": False})

    async def receive() -> Any:
        return messages.pop(0)

    return receive


def read(pieces: Sequence[bytes], content_type: str = KIND) -> Found:
    async def work() -> Found:
        form = Multipart(Body(receiving(pieces), Settings()), content_type)
        return [
            (each.name, each.filename, b"".join([chunk async for chunk in form.chunks()]))
            async for each in form.parts()
        ]

    return asyncio.run(work())


def test_fields_and_files_are_told_apart() -> None:
    found = read([part("a", b"1") + part("f", b"bytes", "f.txt") + END])

    assert found == [("a", None, b"1"), ("f", "f.txt", b"bytes")]


CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.lists(st.sampled_from([b"\r\n", b"--", b"XX", b"\r", b"\n", b"-", b"\r\n--XX", b"\r\n--X", b"a"])).map(b"".join),
).filter(lambda content: b"\r\n--XX\r\n" not in content + b"\r\n" and b"\r\n--XX--" not in content)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(CONTENTS, min_size=1, max_size=4), st.data())
def test_it_is_the_same_however_it_is_cut(contents: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(part(f"p{i}", content, f"{i}.bin") for i, content in enumerate(contents)) + END
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=8)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    found = read(pieces)

    assert [content for _, _, content in found] == contents


def test_byte_by_byte_is_the_same() -> None:
    whole = part("f", b"one\r\n--X\r\n--XY two", "f.txt") + part("g", b"") + END

    assert read([whole[i : i + 1] for i in range(len(whole))]) == read([whole])


def test_what_follows_the_end_is_ignored() -> None:
    assert read([part("a", b"1") + END + b"epilogue"]) == [("a", None, b"1")]
    with pytest.raises(Malformed):
        read([part("a", b"1") + END, b"x" * (LONGEST_EPILOGUE + 1)])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--XX",
        b"--XX\r\n",
        b"garbage",
        b"--YY\r\n",
        part("a", b"1"),
        part("a", b"1")[:-4],
        part("a", b"1") + b"--XX-",
        b"--XX\r\n\r\nno headers\r\n--XX--\r\n",
        b"--XX\r\nContent-Disposition: form-data\r\n\r\nno name\r\n--XX--\r\n",
        b'--XX\r\nContent-Disposition: form-data; name=""\r\n\r\n\r\n--XX--\r\n',
        b'--XX\r\nContent-Disposition: attachment; name="a"\r\n\r\n\r\n--XX--\r\n',
        b'--XX\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n\r\n--XX--\r\n',
        b"--XX\r\nContent Disposition: x\r\n\r\n\r\n--XX--\r\n",
        b"--XX\r\n: x\r\n\r\n\r\n--XX--\r\n",
        b'--XX\r\nContent-Disposition: form-data; name="a"\n\nx\r\n--XX--\r\n',
        part("a", b"YQ==", "a", "Content-Transfer-Encoding: base64\r\n") + END,
        part("a", b"x", "a" * LONGEST_HEADER) + END,
        part("a", b"x", "a", "X-A: b\r\n" * 20) + END,
    ],
)
def test_what_is_malformed_is_said_to_be(body: bytes) -> None:
    with pytest.raises(Malformed):
        read([body])


def test_an_empty_form_has_no_parts() -> None:
    assert read([END]) == []


def test_a_field_past_the_limit_is_refused_before_it_is_held() -> None:
    async def work() -> bytes:
        form = Multipart(Body(receiving([part("a", b"x" * 5000) + END]), Settings()), KIND)
        await anext(form.parts())
        return await form.text("a", 4999)

    with pytest.raises(TooLarge, match=r"a is too large \(limit 4999"):
        asyncio.run(work())


def test_too_many_parts_are_refused() -> None:
    assert len(read([part("a", b"") * MOST_PARTS + END])) == MOST_PARTS
    with pytest.raises(TooLarge):
        read([part("a", b"") * (MOST_PARTS + 1) + END])


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=" + "x" * 71]
)
def test_a_boundary_that_is_none_is_malformed(kind: str) -> None:
    with pytest.raises(Malformed):
        boundary_of(kind)


def test_a_boundary_may_be_quoted() -> None:
    assert boundary_of('multipart/form-data; boundary="a b"; charset=utf-8') == b"a b"
    with pytest.raises(UnsupportedMedia):
        boundary_of("multipart/mixed; boundary=a")


def test_a_connection_that_ends_early_is_malformed() -> None:
    async def work() -> None:
        await Body(receiving([b"abc"], "http.disconnect"), Settings()).whole(100)

    with pytest.raises(Malformed, match="ended before the body did"):
        asyncio.run(work())


async def never() -> Any:
    await asyncio.sleep(3600)


def test_a_silent_sender_is_given_up() -> None:
    with pytest.raises(TooSlow):
        asyncio.run(Body(never, Settings(body_silence=0.05)).read())


def test_who_stops_reading_for_another_reason_is_not_told_of_silence() -> None:
    async def work() -> None:
        reading = asyncio.create_task(Body(never, Settings(body_silence=60)).read())
        await asyncio.sleep(0)
        reading.cancel()
        await reading

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())


def test_who_reads_on_after_another_is_watched_too() -> None:
    async def work() -> None:
        body = Body(never, Settings(body_silence=0.2))
        first = asyncio.create_task(body.read())
        await asyncio.sleep(0)
        second = asyncio.create_task(body.read())  # has begun when the first one hears that it is to end
        first.cancel()
        await asyncio.wait([first])
        await asyncio.wait_for(second, 60)

    with pytest.raises(TooSlow):
        asyncio.run(work())


def test_every_piece_may_be_as_late_as_the_first() -> None:
    left = [b"", b"c", b"b", b"a"]

    async def slowly() -> Any:
        await asyncio.sleep(0.3)
        piece = left.pop()
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    assert asyncio.run(Body(slowly, Settings(body_silence=1, body_rate=0)).whole(100)) == b"abc"


def test_who_goes_silent_after_a_while_is_given_up() -> None:
    spoken = False

    async def once() -> Any:
        nonlocal spoken
        if spoken:
            await never()
        spoken = True
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b"a", "more_body": True}

    with pytest.raises(TooSlow):
        asyncio.run(asyncio.wait_for(Body(once, Settings(body_silence=0.1, body_rate=0)).whole(100), 60))


def test_a_sender_of_single_bytes_is_given_up() -> None:
    async def drip() -> Any:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(TooSlow):
        asyncio.run(Body(drip, Settings(body_silence=0.1)).whole(10_000))


def test_draining_ends_with_a_sender_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "DRAINING", 0.05)

    asyncio.run(asyncio.wait_for(Body(never, Settings()).drain(), Settings().body_silence / 2))


def test_draining_stops_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "DRAINED", 1000)
    taken = 0

    async def flood() -> Any:
        nonlocal taken
        taken += 100
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    asyncio.run(Body(flood, Settings()).drain())

    assert taken == 1000
