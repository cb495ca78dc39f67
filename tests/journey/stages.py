"""The app that journeys run: steady stages and nasty ones. Each writes a ledger, which packhorse cannot touch."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from urllib.parse import quote

from packhorse import App, Context, File, Later, Limit, Params, Permanent, Revive, Secret, each, gather, needs

app = App("journey")


def note(what: str, ctx: Context, stage: str, element: int = 0) -> None:
    """One line, one write: whole even if the process is killed right after."""
    line = f"{what} {ctx.job_id} {stage} {element} {ctx.attempt} {os.getpid()} {time.monotonic()}\n"
    fd = os.open(os.environ["JOURNEY_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


class Words(Params):
    text: File
    seconds: float = 0.02


words = app.pipeline("words", Words, one_per="user")


@words.stage(queue="split", backoff="10ms", retries=30)
def split(ctx: Context, p: Words) -> list[str]:
    note("begin", ctx, "split")
    time.sleep(p.seconds)
    note("end", ctx, "split")
    return p.text.read_text().split()


@words.stage(queue="measure", backoff="10ms", retries=30)
def measure(ctx: Context, p: Words, word: str = each(split)) -> File:
    note("begin", ctx, "measure", len(word))
    for _ in ctx.track(range(4)):
        time.sleep(p.seconds / 4)
    path = ctx.scratch / "length.txt"
    path.write_text(str(len(word)))
    note("end", ctx, "measure", len(word))
    return File(path)


@words.stage(queue="join", backoff="10ms", retries=30)
def join(ctx: Context, p: Words, lengths: list[File] = gather(measure)) -> File:
    note("begin", ctx, "join")
    time.sleep(p.seconds)
    path = ctx.scratch / "lengths.csv"
    path.write_text(",".join(each.read_text() for each in lengths))
    note("end", ctx, "join")
    return File(path)


class Fat(Params):
    elements: int


fat = app.pipeline("fat", Fat)


@fat.stage
def thin(ctx: Context, p: Fat) -> list[int]:
    return list(range(p.elements))


@fat.stage
def fatten(ctx: Context, p: Fat, n: int = each(thin)) -> str:
    return "x" * 200_000


@fat.stage
def swallow(ctx: Context, p: Fat, all_of_it: list[str] = gather(fatten)) -> int:
    return sum(map(len, all_of_it))


class Brief(Params):
    text: File


brief = app.pipeline("brief", Brief, keep="200ms")


@brief.stage(backoff="10ms", retries=5)
def copy(ctx: Context, p: Brief) -> File:
    note("begin", ctx, "copy")
    path = ctx.scratch / "copy.txt"
    path.write_bytes(p.text.read_bytes())
    ctx.artifact("note.txt", b"beside")
    return File(path)


@app.job(retries=2, backoff="10ms")
def hold_the_gil(ctx: Context, seconds: float) -> str:
    note("begin", ctx, "hold_the_gil")
    libc = ctypes.PyDLL(None)  # PyDLL keeps the GIL while it calls
    libc.usleep(int(seconds * 1_000_000))
    note("end", ctx, "hold_the_gil")
    return "held"


@app.job(retries=0)
def deaf(ctx: Context, seconds: float = 60) -> str:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("begin", ctx, "deaf")
    time.sleep(seconds)
    note("end", ctx, "deaf")
    return "heard nothing"


@app.job(retries=1, backoff="10ms")
def polite(ctx: Context, seconds: float = 60) -> str:
    note("begin", ctx, "polite")
    try:
        time.sleep(seconds)
    finally:
        note("tidied", ctx, "polite")
    return "done"


@app.job(memory="150MB")
def greedy(ctx: Context) -> int:
    note("begin", ctx, "greedy")
    held = []
    for _ in range(1000):
        held.append(bytearray(os.urandom(1024) * 5 * 1024))
        time.sleep(0.02)
    return len(held)


@app.job(retries=1, backoff="10ms")
def segfault(ctx: Context) -> str:
    note("begin", ctx, "segfault")
    ctypes.string_at(0)
    return "alive"


@app.job(retries=0)
def flood(ctx: Context, lines: int) -> int:
    note("begin", ctx, "flood")
    for i in range(lines):
        sys.stdout.write(f"line {i} {'x' * 80}\n")
    return lines


@app.job(retries=0)
def silent(ctx: Context) -> str:
    note("begin", ctx, "silent")
    os._exit(0)


@app.job(retries=0)
def parent(ctx: Context, seconds: float = 60, detached: bool = False) -> int:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=detached)
    note("begin", ctx, f"parent:{child.pid}")
    time.sleep(seconds)
    return child.pid


@app.job(retries=2, backoff="10ms")
def fails_at_first(ctx: Context, times: int) -> int:
    note("begin", ctx, "fails_at_first")
    if ctx.attempt <= times:
        raise RuntimeError(f"attempt {ctx.attempt} fails")
    return ctx.attempt


@app.job(retries=1)
def broken(ctx: Context, way: str = "one") -> str:
    """Fails until somebody has put a file there."""
    note("begin", ctx, "broken")
    if not Path(os.environ["JOURNEY_LEDGER"] + ".mended").exists():
        raise Permanent(f"It is broken in {way} way.", code="BROKEN")
    return "mended"


@app.job(retries=0, revive=Revive(codes=("FRAGILE",), times=5, backoff="100ms", budget=7, per="10m"))
def fragile(ctx: Context, way: str = "one") -> str:
    """Always fails, and is begun again by itself."""
    note("begin", ctx, "fragile")
    raise Permanent(f"It is fragile in {way} way.", code="FRAGILE")


@app.job(retries=3)
def hopeless(ctx: Context) -> str:
    note("begin", ctx, "hopeless")
    raise Permanent("no use trying", code="NO_USE")


@app.job(retries=0)
def comes_again(ctx: Context, flag: str) -> str | Later:
    note("begin", ctx, "comes_again")
    if not Path(flag).exists():
        Path(flag).write_text("seen")
        return Later(0.05)
    return "twice"


@app.job(retries=1, timeout="300ms", backoff="10ms")
def too_slow(ctx: Context) -> str:
    note("begin", ctx, "too_slow")
    time.sleep(60)
    return "late"


@app.job(retries=1, timeout="300ms", backoff="10ms", retry_on=("timeout",))
def too_slow_at_first(ctx: Context) -> str:
    note("begin", ctx, "too_slow_at_first")
    time.sleep(60)
    return "late"


@app.job(retries=2, backoff="10ms")
def too_slow_to_wait_for(ctx: Context) -> str:
    note("begin", ctx, "too_slow_to_wait_for")
    time.sleep(60)
    return "late"


@app.job(retries=2, backoff="10ms")
def kills_its_worker(ctx: Context) -> str:
    note("begin", ctx, "kills_its_worker")
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
    return "alive"


@app.job(retries=0, stall="400ms")
def goes_quiet(ctx: Context) -> str:
    for i in range(5):
        ctx.progress(i, 10)
        time.sleep(0.1)
    note("begin", ctx, "goes_quiet")
    time.sleep(60)
    return "woke up"


@app.job(retries=0)
def huge(ctx: Context, size: int) -> str:
    return "x" * size


@app.job(retries=0)
def says(ctx: Context, text: str) -> str:
    note("begin", ctx, "says")
    print(text)
    ctx.log.warning("logged %s", text)
    return os.environ.get("PACKHORSE_STORE", "no store to be seen")


@app.job(retries=0)
def leaves_a_line_open(ctx: Context, text: str) -> int:
    note("begin", ctx, "leaves_a_line_open")
    sys.stdout.write(text)
    return os.getpid()


@app.job(retries=0)
def falls_silent(ctx: Context) -> str:
    ctx.progress(1, 10)
    ctx.progress(2, 10, "the second")
    note("begin", ctx, "falls_silent")
    time.sleep(60)
    return "woke up"


@app.job(retries=2, backoff="10ms", queue="side")
async def beside(ctx: Context, seconds: float = 0.0, die: bool = False) -> int:
    note("begin", ctx, "beside")
    if die and ctx.attempt == 1:
        await asyncio.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(seconds)
    note("end", ctx, "beside")
    return os.getpid()


@app.job(retries=0, queue="side")
async def speaks_from_a_thread(ctx: Context) -> str:
    await asyncio.to_thread(ctx.progress, 1, 2, "from a thread")
    print("no line end", end="")
    return "said"


@app.job(retries=0, queue="side")
async def speaks_at_length(ctx: Context) -> str:
    print("x" * 17_000_000)
    ctx.progress(1, 2, "y" * 17_000_000)
    return "said"


@app.job(retries=0, queue="side")
async def blocks(ctx: Context, seconds: float) -> str:
    note("begin", ctx, "blocks")
    while seconds > 0:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            time.sleep(60)  # does not let itself be cancelled, and lets nobody else run
        seconds -= 0.1
    return "through"


class Chain(Params):
    fail: bool = True


chain = app.pipeline("chain", Chain, one_per="user", slot="line")


@chain.stage
def first(ctx: Context, p: Chain) -> int:
    note("begin", ctx, "first")
    return 1


@chain.stage(retries=0)
def second(ctx: Context, p: Chain, one: int = needs(first)) -> int:
    note("begin", ctx, "second")
    if p.fail and not os.path.exists(os.environ["JOURNEY_LEDGER"] + ".mended"):
        raise RuntimeError("not mended yet")
    return one + 1


@chain.stage
def third(ctx: Context, p: Chain, two: int = needs(second)) -> int:
    note("begin", ctx, "third")
    return two + 1


class Beat(Params):
    mark: str = "one"
    seconds: float = 0.0


beat = app.pipeline("beat", Beat)


@beat.stage(name="tick", queue="beat", retries=30, backoff="10ms")
async def beat_tick(ctx: Context, p: Beat) -> None:
    note("begin", ctx, p.mark)
    await asyncio.sleep(p.seconds)


app.schedule("declared", beat, Beat(mark="code"), cron="0 3 * * *", zone="Europe/Berlin", active=False)


class Leaky(Params):
    api_key: Secret
    headers: dict[str, Secret] = {}  # noqa: RUF012 (msgspec copies it)
    fails: bool = False


leaky = app.pipeline("leaky", Leaky)


class Leaked(Params):
    told: dict[str, str]
    files: list[File]


@leaky.stage(retries=1, backoff="10ms")
def leak(ctx: Context, p: Leaky) -> Leaked:
    """Tells its secrets to everybody it can reach."""
    secrets = [p.api_key.reveal(), *(each.reveal() for each in p.headers.values())]
    print("printed", *secrets, p, vars(ctx) if hasattr(ctx, "__dict__") else ctx)
    print("to stderr", *secrets, file=sys.stderr)
    ctx.log.warning("logged %s", secrets)
    ctx.progress(1, 2, f"reported {secrets}")
    told_at_length(ctx, secrets[0])
    ctx.artifact(f"beside/{secrets[0]}.txt", b"an artifact")
    path = ctx.scratch / "kept.txt"
    path.write_text("a file")
    files = [File(path, f"returned {secrets[0]}.txt"), File(path, "x" * 240 + f"{secrets[0] * 2}.txt")]
    if p.fails and ctx.attempt == 2:
        raise RuntimeError("x" * 1975 + secrets[0] + "y" * 7985)
    if p.fails:
        raise RuntimeError(f"raised {secrets} https://host/?key={quote(secrets[0], safe='')}")
    told = {"length": str(len(secrets[0])), secrets[0]: f"returned {secrets}"}
    return Leaked(told=told, files=files)


def told_at_length(ctx: Context, secret: str) -> None:
    """Cut wherever a text has to be cut, and hidden as little as a header is."""
    ctx.progress(1, 2, "x" * 990 + secret)
    for user in ("", "u:", "us:"):
        header = f"{user}{secret}".encode()
        print(f"Authorization: Basic {b64encode(header).decode()}, {urlsafe_b64encode(header)!r}")
    sys.stdout.write("x" * (64 * 1024 - 10) + f"{secret}\n")


@leaky.stage(retries=0)
async def leak_together(ctx: Context, p: Leaky, leaked: Leaked = needs(leak)) -> str:
    secret = p.api_key.reveal()
    print("printed together", secret)
    told_at_length(ctx, secret)
    process = await asyncio.create_subprocess_exec("echo", "printed by a process", secret)
    await process.wait()
    return f"{leaked.told['length']} {secret}"


class Guarded(Params):
    seconds: float = 0.05


GUARDED = {most: f"guarded{most}" for most in (1, 2, 3, 4, 5)}
"""Pipelines by the number of their tasks that may run at once for a user."""


def _guard(most: int, name: str) -> None:
    pipeline = app.pipeline(name, Guarded, limits=[Limit("user", at_once=most)])

    @pipeline.stage(queue="guarded", backoff="10ms", retries=100)
    async def hold(ctx: Context, p: Guarded) -> None:
        note("begin", ctx, "hold")
        await asyncio.sleep(p.seconds)
        note("end", ctx, "hold")


for most, name in GUARDED.items():
    _guard(most, name)
