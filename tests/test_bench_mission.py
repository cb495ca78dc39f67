"""The benchmark of the real use case: what it compares, and that packhorse takes part."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import httpx2
import pytest
from bench.mission.stacks import PEER, STACKS, Running
from bench.mission.users import User, until_up, write_file
from bench.peers.side.mission_work import transform


def test_users_expect_what_three_stages_make_of_their_file(tmp_path: Path) -> None:
    file = write_file(tmp_path / "0", 2_500_000)
    told: list[tuple[int, int]] = []

    for n in range(3):
        transform(tmp_path / str(n), tmp_path / str(n + 1), 0.0, lambda done, total: told.append((done, total)))

    made = (tmp_path / "3").read_bytes()
    assert (file.size, sha256(made).hexdigest()) == (len(made), file.result)
    assert made != file.path.read_bytes()
    assert told.count((2_500_000, 2_500_000)) >= 3


def test_every_store_and_a_stack_by_hand_take_part() -> None:
    assert {stack.store for stack in STACKS if stack.is_ours} == {"sqlite", "postgresql", "redis"}
    assert PEER in STACKS
    assert all(stack.lines() > 10 for stack in STACKS)


@pytest.mark.release
async def test_a_file_goes_through_packhorse_and_jobs_survive_its_processes(tmp_path: Path) -> None:
    file = write_file(tmp_path / "file", 300_000)
    [stack] = [each for each in STACKS if each.store == "sqlite"]
    running = Running(stack, tmp_path / "stack", f"sqlite://{tmp_path / 'store.db'}")
    try:
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
            await until_up(running, client, file, 60)
            user = User(running, client, "ann")
            slow = await user.submit(file, 0.5)
            await user.watch(slow, until="progress")

            running.kill_workers()
            running.kill_web()

            assert await user.watch(slow) == "completed"
            assert await user.download(slow) == file.result
            assert running.memory() > 10
    finally:
        running.stop()
