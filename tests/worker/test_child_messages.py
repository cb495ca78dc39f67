"""What supervisor and child say to each other, cut out of a stream however it arrives."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.worker.child.messages import (
    FRAME,
    Argument,
    Broken,
    Document,
    Frames,
    FromChild,
    Made,
    Moved,
    Postponed,
    Raised,
    Ready,
    Returned,
    Run,
    Said,
    Skipped,
    Stop,
    ToChild,
    from_child,
    to_child,
    to_frame,
)

text = st.text(max_size=20)
numbers = st.integers(0, 2**31)
documents = st.builds(Document, st.binary(max_size=50), st.lists(st.tuples(text, text), max_size=3).map(tuple))
runs = st.builds(
    Run,
    call=numbers,
    kind=text,
    job_id=text,
    user_id=text,
    trace_id=text,
    attempt=numbers,
    element=numbers,
    scratch=text,
    parameters=documents,
    arguments=st.lists(
        st.builds(
            Argument, text, st.sampled_from(["needs", "each", "gather"]), st.lists(documents, max_size=2).map(tuple)
        ),
        max_size=2,
    ).map(tuple),
)
to_children: st.SearchStrategy[ToChild] = runs | st.builds(Stop, numbers)
from_children: st.SearchStrategy[FromChild] = st.one_of(
    st.builds(Ready),
    st.builds(Broken, text),
    st.builds(Moved, numbers, st.floats(allow_nan=False), st.none() | st.floats(allow_nan=False), text),
    st.builds(Said, numbers, text),
    st.builds(Made, numbers, text, text),
    st.builds(Returned, numbers, documents, st.none() | numbers),
    st.builds(Raised, numbers, text, text, st.booleans(), text),
    st.builds(Postponed, numbers, st.floats(allow_nan=False)),
    st.builds(Skipped, numbers, text),
)


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def bodies(frames: Frames, *pieces: bytes) -> list[bytes]:
    return [body for piece in pieces for body in frames.feed(piece)]


@given(st.lists(from_children, max_size=5), st.lists(st.integers(0, 500), max_size=20))
def test_however_the_stream_is_cut_the_messages_of_a_child_are_the_same(sent: list[FromChild], cuts: list[int]) -> None:
    stream = b"".join(to_frame(message) for message in sent)

    received = bodies(Frames(), *split(stream, cuts))

    assert [from_child(body) for body in received] == sent


@given(st.lists(to_children, max_size=5), st.lists(st.integers(0, 500), max_size=20))
def test_however_the_stream_is_cut_the_messages_to_a_child_are_the_same(sent: list[ToChild], cuts: list[int]) -> None:
    stream = b"".join(to_frame(message) for message in sent)

    received = bodies(Frames(), *split(stream, cuts))

    assert [to_child(body) for body in received] == sent


def test_a_stream_that_comes_byte_by_byte_is_the_same_stream() -> None:
    sent: list[FromChild] = [Said(1, "hello"), Moved(1, 1.0, None, ""), Ready()]
    stream = b"".join(to_frame(message) for message in sent)

    received = bodies(Frames(), *(bytes([byte]) for byte in stream))

    assert [from_child(body) for body in received] == sent


def test_half_a_message_is_no_message() -> None:
    stream = to_frame(Said(1, "hello"))

    assert bodies(Frames(), stream[:-1]) == []


def test_a_frame_that_is_too_long_is_refused_before_it_has_come() -> None:
    frames = Frames(limit=100)

    assert bodies(frames, (100).to_bytes(4, "big")) == []
    with pytest.raises(msgspec.ValidationError):
        bodies(Frames(limit=100), (101).to_bytes(4, "big"))


def test_what_was_whole_before_a_frame_that_is_too_long_is_still_heard() -> None:
    good = to_frame(Said(1, "hello"))
    frames = Frames().feed(good + (FRAME + 1).to_bytes(4, "big"))

    assert from_child(next(frames)) == Said(1, "hello")
    with pytest.raises(msgspec.ValidationError):
        next(frames)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff\xff",
        b"hello",
        msgspec.msgpack.encode({"type": "Said", "call": 1}),
        msgspec.msgpack.encode({"type": "Said", "call": "one", "text": "x"}),
        msgspec.msgpack.encode({"type": "Erase", "call": 1}),
        msgspec.msgpack.encode({"call": 1, "text": "x"}),
        msgspec.msgpack.encode([1, 2, 3]),
        msgspec.msgpack.encode({"type": "Run", "call": 1}),
    ],
)
def test_garbage_is_refused(body: bytes) -> None:
    for read in (from_child, to_child):
        with pytest.raises(msgspec.DecodeError):
            read(body)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    try:
        for body in Frames().feed(data):
            from_child(body)
    except msgspec.DecodeError:
        return
