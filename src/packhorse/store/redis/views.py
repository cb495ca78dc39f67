"""Redis views: keys of an app's own design, written beside ours by one worker at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packhorse.errors import SettingError
from packhorse.store.redis.client import TAG
from packhorse.store.redis.session import Session, pack


class ViewStore(Session):
    async def write_view(
        self,
        view: tuple[str, str],
        writer: str,
        seconds: float,
        commands: Sequence[Sequence[str | bytes]] = (),
        bookmark: Mapping[str, str] | None = None,
        *,
        takes: bool = False,
    ) -> tuple[dict[str, str], list[Any]] | None:
        """Carry out commands on the view's keys and move its bookmark, in one step; the bookmark, and the answers.

        None if another writer holds the view: nothing was written. ``takes``: hold it from now on if nobody does.
        """
        name, prefix = view
        facts = [text for pair in (bookmark or {}).items() for text in pair]
        arguments = (name, prefix, writer, seconds, int(takes), pack([list(each) for each in commands]), pack(facts))
        found = await self._link.run("view", *arguments)
        if found is None:
            return None
        flat, answers = found
        texts = [text.decode() for text in flat]
        return dict(zip(texts[::2], texts[1::2], strict=True)), answers

    def check_view(self, name: str, prefix: str) -> None:
        """Raise SettingError if the store cannot have a view with this prefix.

        It must not be the store's own. In a cluster, a script reaches the keys of one slot only.
        """
        if prefix == self._link.prefix:
            raise SettingError(
                f"PACKHORSE_REDIS_VIEWS: the prefix of the view {name!r} is packhorse's own; choose another one.",
                name="redis_views",
                value=prefix,
            )
        own, other = (TAG.search(text) for text in (self._link.prefix, prefix))
        if self._link.is_cluster and own is not None and (other is None or other.group() != own.group()):
            raise SettingError(
                f"PACKHORSE_REDIS_VIEWS: in a cluster, the prefix of the view {name!r} must contain {own.group()}.",
                name="redis_views",
                value=prefix,
            )
