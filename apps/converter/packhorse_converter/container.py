"""The packed model: a header, a table, and sections with a checksum each. README.md has the layout.

Weights lie apart from the graph, aligned, as hardware reads them; `read` puts them together again, bit by bit.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import onnx
from numpy.typing import NDArray

from packhorse_converter.preprocessing import Preprocessing
from packhorse_converter.toolchain import About

MAGIC = b"PHNEF\r\n\x1a"
"""The line ending reveals a copy that was converted as text."""
FORMAT = 1
HEADER = struct.Struct("<8sHHI16sII")
"""Magic, format, platform, model id, version, number of sections, CRC-32 of the table."""
ENTRY = struct.Struct("<8sQQ32s")
"""Name, offset, size, SHA-256."""
ALIGNED = 64


class Unreadable(ValueError):
    """The container cannot be read; the text says why."""


class Packed(NamedTuple):
    about: About
    model: onnx.ModelProto

    def prepare(self, picture: str | Path) -> dict[str, NDArray[Any]]:
        """The model's input for a picture, as the file says: size, channel order, mean and scale.

        Raises `Unreadable` if the model takes no pictures, and `PictureRefused`.
        """
        how = self.about.preprocessing
        if how is None:
            raise Unreadable("it does not say how to prepare a picture")
        return {how.input: how.read(picture)}


class _Weight(msgspec.Struct, frozen=True):
    name: str
    offset: int
    size: int


class _Info(msgspec.Struct, frozen=True):
    toolchain: str
    weights: list[_Weight]
    preprocessing: Preprocessing | None = None


def write(model: onnx.ModelProto, about: About, to: Path) -> None:
    graph = onnx.ModelProto()
    graph.CopyFrom(model)
    weights = bytearray()
    places: list[_Weight] = []
    for tensor in graph.graph.initializer:
        if tensor.data_type == onnx.TensorProto.STRING:  # its array holds pointers
            raise ValueError(f"the tensor {tensor.name!r} holds text, which cannot be packed")
        data = onnx.numpy_helper.to_array(tensor).tobytes()
        _align(weights)
        places.append(_Weight(tensor.name, len(weights), len(data)))
        weights += data
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
            tensor.ClearField(field)
    info = msgspec.json.encode(_Info(about.toolchain, places, about.preprocessing))
    sections = {b"INFO": info, b"GRAPH": graph.SerializeToString(), b"WEIGHTS": bytes(weights)}
    to.write_bytes(_laid_out(about, sections))


def read(path: str | Path) -> Packed:
    """Raises `Unreadable`, for a single wrong bit too."""
    data = Path(path).read_bytes()
    platform, model_id, version, sections = _sections(data)
    try:
        info = msgspec.json.decode(sections[b"INFO"], type=_Info)
        model = onnx.ModelProto.FromString(sections[b"GRAPH"])
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        raise Unreadable(f"a section is missing or damaged: {error}") from error
    places = {weight.name: weight for weight in info.weights}
    for tensor in model.graph.initializer:
        place = places[tensor.name]
        tensor.raw_data = sections[b"WEIGHTS"][place.offset : place.offset + place.size]
    return Packed(About(platform, model_id, version, info.toolchain, info.preprocessing), model)


def _laid_out(about: About, sections: dict[bytes, bytes]) -> bytes:
    at = HEADER.size + ENTRY.size * len(sections)
    table, body = bytearray(), bytearray()
    for name, data in sections.items():
        body += bytes(-(at + len(body)) % ALIGNED)
        table += ENTRY.pack(name, at + len(body), len(data), hashlib.sha256(data).digest())
        body += data
    version = about.version.encode("ascii")
    header = HEADER.pack(
        MAGIC, FORMAT, about.platform, about.model_id, version, len(sections), zlib.crc32(table + version)
    )
    return header + bytes(table) + bytes(body)


def _sections(data: bytes) -> tuple[int, int, str, dict[bytes, bytes]]:
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise Unreadable("it is not a packed model")
    _, form, platform, model_id, version, count, crc = HEADER.unpack_from(data)
    if form != FORMAT:
        raise Unreadable(f"it has format {form}, and this reader knows {FORMAT}")
    version = version.rstrip(b"\0")
    table = data[HEADER.size : HEADER.size + ENTRY.size * count]
    if len(table) != ENTRY.size * count or zlib.crc32(table + version) != crc:
        raise Unreadable("its table is damaged")
    found: dict[bytes, bytes] = {}
    for name, offset, size, digest in ENTRY.iter_unpack(table):
        section = data[offset : offset + size]
        if hashlib.sha256(section).digest() != digest:
            raise Unreadable(f"the section {name.rstrip(bytes(1)).decode()} is damaged")
        found[name.rstrip(b"\0")] = section
    return platform, model_id, version.decode("ascii"), found


def _align(data: bytearray) -> None:
    data += bytes(-len(data) % ALIGNED)
