"""What a stage cannot see: settings of the worker, and, as another user, its files; whom it shares its process with."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from packhorse import host
from packhorse.core.plan import Status
from packhorse.define.files import File
from packhorse.errors import InvalidInput, SettingError
from packhorse.store.base import Store
from packhorse.worker import files
from packhorse.worker.child.messages import Document
from packhorse.worker.pool import Pool, check_reachable
from tests.contract.builders import started
from tests.journey.site import ROOT, Site
from tests.worker.test_worker import submitted

CANARY = "canary-0123456789-0123456789-0123456789"
APP = """
import os
from pathlib import Path
from packhorse import App, Context, File, Params

app = App("curious")

class Given(Params):
    text: File

look = app.pipeline("look", Given)

def read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(100_000)
    except OSError:
        return None

@look.stage(retries=0)
def around(ctx: Context, p: Given) -> dict[str, object]:
    environments = [read(path) or b"" for path in Path("/proc").glob("[0-9]*/environ")]
    ctx.artifact("made.txt", b"made")
    return {
        "canaries": sum(b"CANARY" in each for each in environments),
        "parent": read(Path(f"/proc/{os.getppid()}/environ")) is not None,
        "secret": read(Path(__file__).with_name("secret")) is not None,
        "user": os.getuid(),
        "groups": os.getgroups(),
        "text": p.text.path.read_text(),
    }

@app.job(retries=0)
def move(ctx: Context) -> list[int]:
    (ctx.scratch / "mine").write_text("mine")
    refused = []
    for number, act in enumerate((
        lambda: ctx.scratch.rename(ctx.scratch.with_name("moved")),
        lambda: ctx.scratch.with_name("new").mkdir(),
        lambda: list(ctx.scratch.parent.iterdir()),
    )):
        try:
            act()
        except PermissionError:
            refused.append(number)
    return refused
""".replace("CANARY", CANARY)


@contextmanager
def working(site: Site, python: str = sys.executable, **env: str) -> Iterator[None]:
    """A worker started from the command line."""
    command = [python, "-m", "packhorse.cli", "worker"]
    env = site.env | {"PACKHORSE_SECRET_KEY": CANARY} | env
    worker = subprocess.Popen(command, env=env, cwd=site.folder, stdout=site.log, stderr=site.log)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()


async def looked(site: Site, folder: Path, python: str = sys.executable, **env: str) -> dict[str, Any]:
    text = folder / "in.txt"
    text.write_text("came in")
    with working(site, python, **env):
        handle = await submitted(site, "look", text=File(text))
        job = await site.ended(handle)
    assert job.status is Status.COMPLETED, (job.error, site.log_text())
    result: dict[str, Any] = (await handle.a_wait()).result
    return result


async def test_a_stage_finds_the_settings_of_its_worker_in_no_process(tmp_path: Path) -> None:
    (tmp_path / "curious.py").write_text(APP)
    site = Site(tmp_path, app=str(tmp_path / "curious.py"))
    try:
        found = await looked(site, tmp_path)
    finally:
        await site.close()

    assert found["canaries"] == 0
    assert not found["parent"]
    assert found["text"] == "came in"


# As another user


def python_for_others() -> str:
    """An interpreter that a user without rights can run: ours may lie in a private folder."""
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of another user")
    version = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, version):
        command = [python, "-c", "import msgspec, psutil, packhorse"]
        try:
            subprocess.run(command, env=path_for_others(), **nobody().popen(), check=True, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip("no Python that another user can run")


def path_for_others() -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT / 'src'}:{sysconfig.get_path('platlib')}:{ROOT}"}


def nobody() -> host.StageUser:
    found = pwd.getpwnam("nobody")
    return host.StageUser("nobody", found.pw_uid, found.pw_gid, found.pw_dir)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody can enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


async def test_stages_run_as_another_user_and_cannot_read_files_of_the_worker(open_folder: Path) -> None:
    python = python_for_others()
    (open_folder / "curious.py").write_text(APP)
    (open_folder / "secret").write_text("secret")
    (open_folder / "secret").chmod(0o600)
    site = Site(open_folder, app=str(open_folder / "curious.py"), stage_user="nobody")
    try:
        found = await looked(site, open_folder, python, **path_for_others())
    finally:
        await site.close()

    assert (found["user"], found["text"]) == (nobody().uid, "came in")
    assert 0 not in found["groups"]
    assert (found["canaries"], found["parent"], found["secret"]) == (0, False, False)


async def test_a_stage_of_another_user_cannot_replace_the_folder_of_an_attempt(open_folder: Path) -> None:
    python = python_for_others()
    (open_folder / "curious.py").write_text(APP)
    site = Site(open_folder, app=str(open_folder / "curious.py"), stage_user="nobody")
    try:
        with working(site, python, **path_for_others()):
            handle = await submitted(site, "move")
            job = await site.ended(handle)
            assert job.status is Status.COMPLETED, (job.error, site.log_text())
            refused = (await handle.a_wait()).result
    finally:
        await site.close()

    assert refused == [0, 1, 2]


def test_a_folder_is_given_away_last_and_nothing_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, outside = tmp_path / "token", tmp_path / "outside"
    (folder / "in" / "1").mkdir(parents=True)
    (folder / "in" / "1" / "a.txt").touch()
    outside.mkdir()
    (outside / "b.txt").touch()
    (folder / "in" / "link").symlink_to(outside)
    given: list[Path] = []

    def chown(name: str, _uid: int, _gid: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        assert not follow_symlinks
        given.append(Path(name) if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink() / name)

    monkeypatch.setattr(os, "chown", chown)
    files.give_to(str(folder), nobody())

    inside = folder / "in"
    assert given[-2:] == [inside, folder]
    assert sorted(given[:-2]) == [inside / "1", inside / "1" / "a.txt", inside / "link"]


def test_a_user_that_does_not_exist_or_protects_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="There is no user 'unheard-of'"):
        host.StageUser.find("unheard-of")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SettingError, match="Only root can run stages"):
        host.StageUser.find("nobody")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SettingError, match="cannot run as root"):
        host.StageUser.find("root")
    assert host.StageUser.find("") is None


def test_a_scratch_folder_that_the_user_cannot_enter_is_refused(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", python_for_others())
    inside = open_folder / "private" / "scratch"
    inside.mkdir(parents=True)
    os.chown(inside, nobody().uid, nobody().gid)

    check_reachable(inside, nobody())
    inside.parent.chmod(0o700)
    with pytest.raises(SettingError, match="cannot enter"):
        check_reachable(inside, nobody())


async def test_a_file_that_the_stage_does_not_own_is_not_published(tmp_path: Path, store: Store, blobs: Any) -> None:
    claimed = await started(store)
    path = tmp_path / "scratch" / "a.txt"
    path.parent.mkdir()
    path.write_text("of another user")
    mine = host.StageUser("mine", os.getuid(), os.getgid(), "/")
    other = mine._replace(uid=os.getuid() + 1)
    document = Document(b"1", ((str(path), "a.txt"),))

    with pytest.raises(InvalidInput, match=r"'a\.txt'"):
        await files.publish(blobs, claimed, path.parent, document, (), other)
    published = await files.publish(blobs, claimed, path.parent, document, (), mine)

    assert published.files[0].file.size == len("of another user")


async def test_a_folder_that_became_a_link_is_not_published_from(
    tmp_path: Path, store: Store, blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = await started(store)
    scratch, outside = tmp_path / "scratch", tmp_path / "outside"
    for folder in (scratch / "out", outside):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("a")
    user = host.StageUser("mine", os.getuid(), os.getgid(), "/")
    document = Document(b"1", ((str(scratch / "out" / "a.txt"), "a.txt"),))

    def replace_folder(_path: Path) -> bool:
        """The stage does so after the supervisor has checked the path."""
        (scratch / "out").rename(scratch / "old")
        (scratch / "out").symlink_to(outside)
        return True

    monkeypatch.setattr(Path, "is_file", replace_folder)
    with pytest.raises(InvalidInput, match=r"'a\.txt'"):
        await files.publish(blobs, claimed, scratch, document, (), user)


# Processes of their own


async def test_a_process_runs_stages_of_one_owner_and_others_take_its_place(tmp_path: Path) -> None:
    (tmp_path / "curious.py").write_text(APP)
    pool = Pool(str(tmp_path / "curious.py"), recycle=10, memory=0, grace=1.0, scratch=tmp_path, log_line=print)
    await pool.open()
    try:
        first = await pool.single("ann")
        pool.give_back(first)
        again = await pool.single("ann")
        pool.give_back(again)
        other = await pool.single("bob")
        await first.has_ended.wait()

        assert again is first
        assert other is not first
        assert pool._all == {other}
    finally:
        await pool.close()


@pytest.mark.parametrize(("per", "processes"), [("worker", 1), ("tenant", 1), ("job", 2)])
async def test_jobs_share_a_process_only_as_far_as_the_setting_says(tmp_path: Path, per: str, processes: int) -> None:
    (tmp_path / "pids.py").write_text(PIDS)
    site = Site(tmp_path, app=str(tmp_path / "pids.py"), process_per=per, queues="default=1")
    try:
        with working(site):
            pids: list[int] = []
            for _ in range(2):
                handle = await submitted(site, "pid")
                await site.ended(handle)
                pids.append((await handle.a_wait()).result)
    finally:
        await site.close()

    assert len({*pids}) == processes


PIDS = """
import os
from packhorse import App

app = App("pids")

@app.job
async def pid() -> int:
    return os.getpid()
"""
