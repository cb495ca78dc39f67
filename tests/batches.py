"""Hands tests out to the processes of a run, in batches that are as small as what tests share allows.

Tests of most files share a server or a browser, so a file is one batch. In the folders below they share nothing: each
test function is a batch, and each journey. A process that is free takes the next batch.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

BY_FUNCTION = ("background", "blobs", "contract", "core", "define", "jobs", "lab", "outbound", "worker")
BY_TEST = ("journey",)


class Batches(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return batch(nodeid)


def batch(nodeid: str) -> str:
    """The name of the batch that a test belongs to."""
    file, _, _ = nodeid.partition("::")
    folder = file.removeprefix("tests/").partition("/")[0]
    if folder in BY_TEST:
        return nodeid
    return nodeid.partition("[")[0] if folder in BY_FUNCTION else file
