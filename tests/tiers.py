"""Which tests run when: `make quick` while working, `make test` before a merge, `make test-all` before a release.

The contract suite proves every guarantee on every store. So before a merge,

- code above the store is tested on SQLite, and on the other stores where a test is marked `every_store`;
- a journey, which takes real processes through one fault, runs on one store; all journeys together cover every store;
- the contract runs on Redis Cluster where a test is marked `cluster`: it differs from Redis in how keys are spread;
- what takes a store and an object store runs on every store beside a folder, and on every object store beside SQLite.

Before a release everything runs on everything, and Hypothesis tries five times as many examples. A test marked
`release` runs only then.

A test that a seeded bug names, with its parameters, always runs before a merge: it is known to catch something.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import seeded

TESTS = Path(__file__).parent

STORES = ("sqlite", "postgresql", "redis")
CLUSTER = "redis+cluster"
OTHER_STORES = frozenset({"model", "postgresql", "redis", CLUSTER})
BUCKETS = frozenset({"s3", "gcs"})

ABOVE_THE_STORE = frozenset({"cli", "http", "jobs", "web", "test_runtime.py"})
"""Where tests use a store through its contract."""

JOURNEYS = frozenset({"apps", "journey"})
"""Where tests take real processes through a fault or a whole job."""

QUICK = ("auth", "background", "contract", "core", "define", "http", "jobs", "outbound", "store/sqlite", "worker")
"""The inner loop: what runs in this process, on SQLite and a folder."""

NOT_QUICK = frozenset(
    {
        "contract/test_store_races.py",
        "contract/test_stores_agree.py",
        "http/test_aliases.py",
        "http/test_artifact_inputs.py",
        "http/test_authentication.py",
        "http/test_bucket.py",
        "http/test_bulk_clients.py",
        "http/test_client.py",
        "http/test_clients.py",
        "http/test_corpus.py",
        "http/test_crashes.py",
        "http/test_downloads.py",
        "http/test_events.py",
        "http/test_keys.py",
        "http/test_metrics.py",
        "http/test_mount.py",
        "http/test_outages.py",
        "http/test_page.py",
        "http/test_patience.py",
        "http/test_prefer_wait.py",
        "http/test_promises.py",
        "http/test_promote.py",
        "http/test_public_job.py",
        "http/test_results.py",
        "http/test_schedule_clients.py",
        "http/test_server.py",
        "http/test_tenants.py",
        "http/test_trace.py",
        "http/test_uploads.py",
        "worker/test_child_process.py",
        "worker/test_describe.py",
        "worker/test_isolation.py",
        "worker/test_orphans.py",
        "worker/test_pool.py",
        "worker/test_worker.py",
    }
)
"""Files in those folders that start other processes or take long."""


class Tier(IntEnum):
    QUICK = 1
    TEST = 2
    ALL = 3


def add_option(parser: pytest.Parser) -> None:
    names = [tier.name.lower() for tier in Tier]
    parser.addoption("--tier", choices=names, default="all", help="which tests to run (default: all of them)")


def configure(config: pytest.Config) -> None:
    """Before any test is imported: `examples` needs to know the tier then."""
    _wanted.append(Tier[config.getoption("--tier").upper()])


def examples(most: int) -> int:
    """How many examples Hypothesis tries: all of them before a release, and a fifth before a merge.

    Each run tries others, so that a day of runs tries more than one long run does.
    """
    return most if is_release() else most // 5


def is_release() -> bool:
    """Whether everything runs, at full length."""
    return not _wanted or _wanted[-1] is Tier.ALL


def sampled(parameters: Iterable[Any], count: int = 1) -> list[Any]:
    """For `parametrize`: the first of these before a merge, and those that repeat its claim only before a release."""
    rows = [each if isinstance(each, tuple) else (each,) for each in parameters]
    late = pytest.mark.release
    return [pytest.param(*row, marks=() if nth < count else late) for nth, row in enumerate(rows)]


_wanted: list[Tier] = []


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the tier that the command line names."""
    wanted = Tier[config.getoption("--tier").upper()]
    if wanted is Tier.ALL:
        return
    stores: dict[str, list[str]] = {}
    for item in items:
        if store := _store(item):
            stores.setdefault(_without_store(item), []).append(store)
    tiers = [tier_of(item, stores.get(_without_store(item), [])) for item in items]
    config.hook.pytest_deselected(items=[item for item, tier in zip(items, tiers, strict=True) if tier > wanted])
    items[:] = [item for item, tier in zip(items, tiers, strict=True) if tier <= wanted]


def tier_of(item: pytest.Item, stores: list[str]) -> Tier:
    """The first tier that runs this test, of which there is one for each of these stores."""
    store, words = _store(item), {*_words(item)}
    is_late = (
        item.get_closest_marker("release")
        or (store and not _runs_before_a_merge(item, store, stores))
        or (BUCKETS & words and OTHER_STORES & words)
    )
    if is_late and item.nodeid not in catching():
        return Tier.ALL
    return Tier.QUICK if store in (None, "sqlite") and _is_quick(item) else Tier.TEST


@cache
def catching() -> frozenset[str]:
    """The tests that seeded bugs name."""
    return frozenset(test for bug in seeded.load() for test in bug.tests)


def _runs_before_a_merge(item: pytest.Item, store: str, stores: list[str]) -> bool:
    if store == CLUSTER:
        return stores == [CLUSTER] or item.get_closest_marker("cluster") is not None
    part = item.path.relative_to(TESTS).parts[0]
    if part in JOURNEYS:
        return store == _turn(item, stores)
    if part in ABOVE_THE_STORE and not item.get_closest_marker("every_store"):
        return store == ("sqlite" if "sqlite" in stores else _turn(item, stores))
    return True


def _turn(item: pytest.Item, stores: list[str]) -> str:
    """The store whose turn it is for this journey: the same in every run, and about as often each.

    All journeys of one app share the processes that they run on, and therefore the store.
    """
    name = item.path.name if item.path.parent.name == "apps" else _without_store(item)
    return stores[zlib.crc32(name.encode()) % len(stores)]


def _store(item: pytest.Item) -> str | None:
    """The store of a test that has one as its parameter."""
    return next((each for each in _parameters(item) if each in (*STORES, CLUSTER)), None)


def _without_store(item: pytest.Item) -> str:
    store = _store(item)
    return item.nodeid.replace(store, "*") if store else item.nodeid


def _is_quick(item: pytest.Item) -> bool:
    name = item.path.relative_to(TESTS).as_posix()
    return name.startswith(QUICK) and name not in NOT_QUICK and not BUCKETS & {*_words(item)}


def _words(item: pytest.Item) -> Iterator[str]:
    return (each for each in _parameters(item) if isinstance(each, str))


def _parameters(item: pytest.Item) -> tuple[Any, ...]:
    return tuple(getattr(getattr(item, "callspec", None), "params", {}).values())
