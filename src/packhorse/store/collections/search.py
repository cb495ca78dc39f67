"""The terms that jobs are found by: read newest first, from the index of a tenant or of one of its users."""

from __future__ import annotations

from packhorse.core.search import END, LAST, TERMS
from packhorse.store.base import Records

WINDOW = 500
"""Maximum jobs to read whose file name begins with a text: the index has them in the order of their names."""


async def jobs_with(store: Records, index: str, term: str, *, before: str | None, limit: int) -> list[str]:
    """Ids of the jobs with exactly this term, newest first, older than the id ``before``."""
    end = f"{term}{END}{before or LAST}"
    found = await store.scan(TERMS, index, after=f"{term}{END}", before=end, limit=limit, newest=True)
    return [each.id for each in found]


async def jobs_beginning(store: Records, index: str, term: str) -> list[str]:
    """Ids of jobs with a term that begins so, newest first: of the first `WINDOW` in the order of terms."""
    found = await store.scan(TERMS, index, after=term, before=f"{term}{LAST}", limit=WINDOW)
    return sorted({each.id for each in found}, reverse=True)
