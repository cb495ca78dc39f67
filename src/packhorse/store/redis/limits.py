"""What operators set and see of limits. What counts and parks tasks is in lua/limits.lua."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.limits import name_of, window_of
from packhorse.store.limits import HOLDERS, MOST_PARKED, Holder, LimitState
from packhorse.store.redis import keys
from packhorse.store.redis.session import Session, pack, pack_effects

TRIMMED = 1000
"""Keys looked at together."""


class LimitStore(Session):
    async def set_limit(self, name: str, most: int | None) -> None:
        await self._write.put(pack_effects(["limit", name, "" if most is None else str(most)]))

    async def limit_states(
        self, keys: Sequence[str] | None = None, *, name: str = "", after: str = "", limit: int = 100
    ) -> list[LimitState]:
        self._open()
        if keys is None:
            listed = await self._link.run("limit_keys", limit, *_ranges(name, after))
            keys = [key.decode() for key in listed]
        if not keys:
            return []
        asked = [(key, name_of(key), str(window_of(name_of(key)))) for key in keys]
        found = await self._link.run("limit_states", self.now.argument(), HOLDERS, MOST_PARKED, pack(asked))
        return [_state(key, facts) for key, facts in zip(keys, found, strict=True)]

    async def _trim_limits(self) -> None:
        """Forget keys that nobody uses any more, and starts that are past every window."""
        after = "-"
        while True:
            question = ["ZRANGEBYLEX", "limits:keys", after, "+", "LIMIT", "0", str(TRIMMED)]
            [page] = await self._link.ask([question])
            await self._write.put(*(pack_effects(["trim_limit", key.decode()]) for key in page))
            if len(page) < TRIMMED:
                return
            after = f"({page[-1].decode()}"


def _ranges(name: str, after: str) -> list[str]:
    """A key is the name, or the name, an equals sign and what is counted apart. In the order of bytes: < = >."""
    if not name:
        return [f"({after}" if after else "-", "+"]
    own = [f"[{name}", f"[{name}"] if after.encode() < name.encode() else []
    first = f"[{name}=" if after.encode() < f"{name}=".encode() else f"({after}"
    return [*own, first, f"({name}>"]


def _state(key: str, facts: Sequence[bytes]) -> LimitState:
    most, used, parked, free_at, *held = [fact.decode() for fact in facts]
    holders = []
    for n in range(0, len(held), 3):
        entry, worker, since = held[n : n + 3]
        holders.append(Holder(*keys.entry_from(entry), worker, float(since)))
    free = float(free_at) if free_at else None
    return LimitState(key, int(most) if most else None, int(used), tuple(holders), int(parked), free)
