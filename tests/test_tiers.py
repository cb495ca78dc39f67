"""Which tests run before a merge, and which of them have to run in the same process."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.batches import BY_FUNCTION, BY_TEST, SHORT, batch, keep_longest, longest
from tests.tiers import CLUSTER, NOT_QUICK, STORES, TESTS, Tier, catching, sampled, tier_of


class Item:
    """As much of a collected test as the choice of a tier looks at."""

    def __init__(self, path: str, store: str | None = None, marks: Iterable[str] = (), objects: str = "") -> None:
        self.path = TESTS / path
        self.nodeid = f"tests/{path}::test_it[{store}]"
        self.callspec = SimpleNamespace(params={"place": store, "objects": objects} if store else {})
        self._marks = frozenset(marks)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self._marks else None


def tiers(path: str, stores: list[str], *marks: str) -> dict[str, Tier]:
    return {store: tier_of(cast(Any, Item(path, store, marks)), stores) for store in stores}


def before_a_merge(path: str, stores: list[str], *marks: str) -> list[str]:
    return [store for store, tier in tiers(path, stores, *marks).items() if tier <= Tier.TEST]


@pytest.mark.parametrize("name", sorted(NOT_QUICK))
def test_files_left_out_of_the_inner_loop_exist(name: str) -> None:
    assert Path(TESTS / name).is_file()


def test_code_above_the_store_runs_on_sqlite_before_a_merge() -> None:
    assert before_a_merge("http/test_jobs.py", [*STORES]) == ["sqlite"]


def test_code_above_the_store_runs_on_every_store_if_marked() -> None:
    assert before_a_merge("http/test_jobs.py", [*STORES], "every_store") == [*STORES]


def test_code_that_has_no_test_on_sqlite_runs_on_one_other_store() -> None:
    assert len(before_a_merge("http/test_jobs.py", ["postgresql", "redis"])) == 1


@pytest.mark.parametrize("number", range(20))
def test_a_journey_runs_on_exactly_one_store(number: int) -> None:
    assert len(before_a_merge(f"journey/test_{number}.py", [*STORES])) == 1


def test_journeys_together_cover_every_store() -> None:
    chosen = {store for number in range(20) for store in before_a_merge(f"journey/test_{number}.py", [*STORES])}

    assert chosen == {*STORES}


def test_the_contract_runs_on_every_store_and_on_a_cluster_if_marked() -> None:
    everywhere = [*STORES, CLUSTER]

    assert before_a_merge("contract/test_store_keys.py", everywhere) == [*STORES]
    assert before_a_merge("contract/test_store_keys.py", everywhere, "cluster") == everywhere


def test_stores_meet_a_folder_and_buckets_meet_sqlite_before_a_merge() -> None:
    def is_late(store: str, objects: str) -> bool:
        return tier_of(cast(Any, Item("contract/test_publish.py", store, (), objects)), [*STORES]) is Tier.ALL

    assert [store for store in ("model", *STORES) if is_late(store, "folder")] == []
    assert [store for store in ("model", *STORES) if is_late(store, "s3")] == ["model", "postgresql", "redis"]


def test_a_test_that_only_a_cluster_has_runs_there() -> None:
    assert before_a_merge("store/redis/test_places.py", [CLUSTER]) == [CLUSTER]


def test_the_inner_loop_is_on_sqlite_and_starts_no_process() -> None:
    assert tiers("contract/test_store_keys.py", [*STORES]) == {
        "sqlite": Tier.QUICK,
        "postgresql": Tier.TEST,
        "redis": Tier.TEST,
    }
    assert tiers("contract/test_store_races.py", ["sqlite"]) == {"sqlite": Tier.TEST}


def test_a_test_for_releases_runs_in_no_other_tier() -> None:
    assert tier_of(cast(Any, Item("core/test_cron.py", marks=["release"])), []) is Tier.ALL


def test_of_sampled_parameters_the_first_run_before_a_merge() -> None:
    rows = sampled(["a", ("b", 1), "c"], count=2)

    assert [row.values for row in rows] == [("a",), ("b", 1), ("c",)]
    assert [[mark.name for mark in row.marks] for row in rows] == [[], [], ["release"]]


def test_a_test_that_catches_a_seeded_bug_runs_before_a_merge() -> None:
    item = Item("core/test_cron.py", marks=["release"])
    item.nodeid = next(iter(catching()))

    assert tier_of(cast(Any, item), []) is not Tier.ALL


@pytest.mark.parametrize("folder", [*BY_FUNCTION, *BY_TEST])
def test_tests_that_share_a_fixture_are_handed_out_together(folder: str) -> None:
    sharing = [path.name for path in (TESTS / folder).rglob("*.py") if 'scope="module"' in path.read_text()]

    assert sharing == []


def test_a_batch_is_a_file_a_function_or_a_journey() -> None:
    assert batch("tests/web/test_job.py::test_it[a]") == "tests/web/test_job.py"
    assert batch("tests/core/test_cron.py::test_it[a::b]") == "tests/core/test_cron.py::test_it"
    assert batch("tests/journey/test_faults.py::test_it[redis]") == "tests/journey/test_faults.py::test_it[redis]"
    assert batch("tests/test_layout.py::test_it") == "tests/test_layout.py"


@pytest.mark.parametrize("name", longest())
def test_batches_that_are_begun_first_exist(name: str) -> None:
    file, _, test = name.partition("::")
    words = re.findall(r"\w+", (TESTS.parent / file).read_text())

    assert batch(name) == name
    assert re.match(r"\w*", test)[0] in ("", *words)  # type: ignore[index]


def test_the_list_of_the_longest_has_what_takes_long_in_the_order_of_its_seconds(tmp_path: Path) -> None:
    kept = tmp_path / "longest.txt"

    keep_longest(
        {
            "tests/web/test_job.py::test_a": SHORT / 2,
            "tests/web/test_job.py::test_b": SHORT / 2,
            "tests/core/test_cron.py::test_a": SHORT / 2,
            "tests/journey/test_faults.py::test_a[redis]": 90.2,
        },
        kept,
    )

    assert kept.read_text() == f"90 tests/journey/test_faults.py::test_a[redis]\n{SHORT:.0f} tests/web/test_job.py\n"
