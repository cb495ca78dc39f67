"""Alerts people to failures, as their pipeline says: to new kinds and dismissed ones that occur again, to every one, or
to many in a short time.

It posts to webhooks through the outbox and pipes to a command. A tenant gets a few messages about kinds per minute at
most: a message lists some groups and counts the rest. Of a pipeline that alerts to every failure, each is in a message,
with its record: a receiver can be the dead-letter queue of the pipeline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shlex
import signal
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from packhorse.background.failures import run_or_postpone
from packhorse.core import json
from packhorse.core.failures import Alarm, FailureAction, put_action
from packhorse.core.webhooks import NO_JOB, Delivery, webhook_delay
from packhorse.crashpoints import reach
from packhorse.host import child_environment
from packhorse.log import log
from packhorse.schemas.failures import failure_to_json, group_to_json
from packhorse.schemas.progress import iso
from packhorse.store.base import Charge, Store
from packhorse.store.collections.failures import get_failures, get_group, settle_action, take_actions
from packhorse.store.collections.webhooks import post_deliveries, webhook_targets

BATCH = 1000
HOLD = 60.0
"""Seconds that this worker holds alerts, besides the time for the command."""
POLL = 1.0
SHOWN = 10
"""Groups that one message lists. It counts the others."""
RECORDED = 50
"""Failures in one message of a pipeline that alerts to every failure."""
MESSAGES, MINUTE = 6, 60.0
"""Maximum messages to a tenant, and the seconds in which they are counted."""
PATIENCE = 30.0
"""Seconds for the command."""


Alarms = list[tuple[FailureAction, Alarm]]


class Alerts:
    def __init__(
        self, store: Store, command: str, hold: float = HOLD, luck: Callable[[], float] = random.random
    ) -> None:
        self._store = store
        self._command = shlex.split(command)
        self._hold = hold + (PATIENCE if command else 0.0)
        self._luck = luck

    async def tick(self) -> float:
        taken = await take_actions(self._store, "alert", BATCH, self._hold)
        alarms: Alarms = []

        async def read(action: FailureAction) -> None:
            alarms.append((action, json.record(action.body, Alarm)))

        for action in taken:
            await run_or_postpone(self._store, [action], read(action))
        alarms.sort(key=_group_key)
        for _, group in groupby(alarms, key=_group_key):
            for found in _messages(list(group)):
                await run_or_postpone(self._store, [action for action, _ in found], self._send(found))
        return 0.0 if len(taken) == BATCH else POLL

    async def _send(self, alarms: Alarms) -> None:
        """One message for all alerts of one tenant and kind."""
        first, alarm = alarms[0]
        if alarm.is_quiet:
            await self._settle(alarms, due_at=None)
            return
        if alarm.kind == "rate" and not (alarm.is_admitted or alarm.is_posted):
            if not await self._reach_rate(alarms):
                await self._settle(alarms, due_at=None)
                return
            alarms = await self._keep(alarms, is_admitted=True)  # first, so that a crash after the charge loses nothing
            if not await self._is_first(alarms, amount=1):
                await self._settle(alarms, due_at=None)
                return
        if not alarm.is_posted and alarm.kind != "recorded":
            spent = await self._store.spend([Charge(f"alert:{quote(first.tenant, safe='')}", 1, MESSAGES, MINUTE)])
            if spent.refused is not None:
                await self._settle(alarms, due_at=self._store.now() + spent.wait)
                return
        body = await self._message(alarms)
        if body is None:
            await self._settle(alarms, due_at=None)
            return
        if not alarm.is_posted:  # with the same ids if it is repeated, so that a receiver can recognise a duplicate
            at = self._store.now()
            id = f"failure.{_message_id(alarms)}"
            endpoints = await webhook_targets(self._store).of(first.tenant)
            messages = [Delivery(f"{id}.{to}", to, NO_JOB, 0, at, next_at=at, body=body.decode()) for to in endpoints]
            await post_deliveries(self._store, messages)
            reach("alert.posted")
            if self._command:
                alarms = await self._keep(alarms, is_posted=True)
        trouble = await run(self._command, body) if self._command else None
        await self._settle(alarms, due_at=None if trouble is None else self._next_try(alarms, trouble))

    async def _reach_rate(self, alarms: Alarms) -> bool:
        """Count the failures; whether they reach the rate of their pipeline, and no message about that was sent yet.

        A worker that dies here has them counted twice, which may send the message early.
        """
        action, alarm = alarms[0]
        if alarm.rate is None:
            return True
        (limit, per), place = alarm.rate, _place(action, alarm)
        spent = [await self._store.spend([Charge(f"alertrate:{place}", 1, limit - 1, per)]) for _ in alarms]
        return any(each.refused is not None for each in spent) and await self._is_first(alarms, amount=0)

    async def _is_first(self, alarms: Alarms, amount: int) -> bool:
        """Whether no message was sent in the time of the rate; from now on there was, if the amount is 1."""
        action, alarm = alarms[0]
        if alarm.rate is None:
            return True
        spent = await self._store.spend([Charge(f"alertsent:{_place(action, alarm)}", amount, 1, alarm.rate[1])])
        return spent.refused is None and (amount > 0 or spent.left[0] > 0)

    async def _message(self, alarms: Alarms) -> bytes | None:
        """None if what it is about does not exist any more."""
        return await (self._about_groups(alarms) if alarms[0][1].rate is None else self._about_failures(alarms))

    async def _about_failures(self, alarms: Alarms) -> bytes | None:
        action, alarm = alarms[0]
        found = await get_failures(self._store, [each.failure_id for _, each in alarms])
        failures = [failure_to_json(each) for each in found if each is not None]
        if not failures or alarm.rate is None:
            return None
        data: dict[str, Any] = {"tenant_id": action.tenant, "failures": failures}
        if alarm.kind == "rate":
            rate = {"failures": alarm.rate[0], "seconds": alarm.rate[1]}
            data = {"tenant_id": action.tenant, "pipeline": alarm.pipeline, "rate": rate, "failures": failures[-SHOWN:]}
        return json.encode({"type": f"failure.{alarm.kind}", "timestamp": iso(alarm.at), "data": data})

    async def _about_groups(self, alarms: Alarms) -> bytes | None:
        action, alarm = alarms[0]
        names = list(dict.fromkeys(each.fingerprint for _, each in alarms))
        found = [await get_group(self._store, action.tenant, name) for name in names[:SHOWN]]
        groups = [group_to_json(group) for group in found if group is not None]
        if not groups:
            return None
        data = {"tenant_id": action.tenant, "groups": groups, "more": len(names) - min(len(names), SHOWN)}
        return json.encode({"type": f"failure.{alarm.kind}", "timestamp": iso(alarm.at), "data": data})

    def _next_try(self, alarms: Alarms, trouble: str) -> float | None:
        """When to run the command again; None to give up."""
        action, alarm = alarms[0]
        now = self._store.now()
        pause = webhook_delay(now - alarm.at, action.attempts, self._luck())
        if pause is None:
            log.alert_given_up(len(alarms), trouble)
        return None if pause is None else now + pause

    async def _keep(self, alarms: Alarms, **facts: bool) -> Alarms:
        """Store what was decided, before it is carried out, and hold them for longer.

        Raises Conflict if another worker has one of them since.
        """
        due_at = self._store.now() + self._hold
        kept = [replace(alarm, **facts) for _, alarm in alarms]
        actions = [
            replace(action, body=json.encode(alarm), due_at=due_at)
            for (action, _), alarm in zip(alarms, kept, strict=True)
        ]
        stamps = await self._store.put([put_action(each) for each in actions], quiet=True)
        held = [replace(action, stamp=stamp) for action, stamp in zip(actions, stamps, strict=True)]
        return list(zip(held, kept, strict=True))

    async def _settle(self, alarms: Alarms, *, due_at: float | None) -> None:
        await asyncio.gather(*(settle_action(self._store, action, due_at=due_at) for action, _ in alarms))


def _group_key(alarm: tuple[FailureAction, Alarm]) -> tuple[str, str, bool, bool, bool, str]:
    action, body = alarm
    return action.tenant, body.kind, body.is_posted, body.is_admitted, body.is_quiet, body.pipeline


def _place(action: FailureAction, alarm: Alarm) -> str:
    return f"{quote(action.tenant, safe='')}:{quote(alarm.pipeline, safe='')}"


def _message_id(alarms: Alarms) -> str:
    """The same for a message that is repeated.

    When a worker dies that was sending failures, they may be sent together
    with others: that is another message.
    """
    ids = [each.failure_id for _, each in alarms]
    return ids[0] if alarms[0][1].rate is None else f"{ids[0]}.{sha256(' '.join(ids).encode()).hexdigest()[:16]}"


def _messages(alarms: Alarms) -> list[Alarms]:
    """What one message is about: a failure that is not listed in it would be lost."""
    if alarms[0][1].kind != "recorded":
        return [alarms]
    return [alarms[at : at + RECORDED] for at in range(0, len(alarms), RECORDED)]


async def run(command: Sequence[str], body: bytes) -> str | None:
    """Run it without a shell, without our secrets, and with a time limit; return what went wrong, if anything."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=child_environment("alert"),
            start_new_session=True,
        )
    except OSError as error:
        return f"cannot be run: {error}"
    try:
        async with asyncio.timeout(PATIENCE):
            await process.communicate(body)
    except TimeoutError:
        return f"took longer than {PATIENCE:.0f} s"
    except OSError:  # it does not read its input
        await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return None if process.returncode == 0 else f"ended with {process.returncode}"
