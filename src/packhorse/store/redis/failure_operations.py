"""What the script of a commit is told about failures and errands: the operations that keep, settle and drop them."""

from __future__ import annotations

from packhorse.core import failures as rules
from packhorse.core import json
from packhorse.core.changes import RecordFailure, SettleFailures
from packhorse.store.failures import Errand, alert_of, revival_of
from packhorse.store.redis import keys

Op = list[str]


def recorded(effect: RecordFailure) -> list[Op]:
    """The operations that keep a failure and count it. The script finds out whether its group is new."""
    failure = effect.failure
    group = rules.new_group(failure)
    facts = {
        "pipeline": group.pipeline, "stage": group.stage or "", "code": group.code, "message": group.message,
        "first_seen": repr(group.first_seen),
    }  # fmt: skip
    alerts = [alert_of(failure, kind) for kind in ("new", "again")]
    ops = [
        [
            "fail", failure.id, failure.job_id, keys.group(failure.tenant, failure.fingerprint), failure.user,
            str(rules.MAX_USERS), repr(failure.at), group.seen, json.encode(failure).decode(),
            *(value(each) for each in alerts), alerts[0].id, *(text for pair in facts.items() for text in pair),
        ]
    ]  # fmt: skip
    revival = revival_of(failure)
    return ops if revival is None else [*ops, *put(revival)]


def settled(job_id: str, effect: SettleFailures) -> Op:
    return [
        "settle_failures",
        job_id,
        effect.was.value,
        effect.now.value,
        "" if effect.settled is None else json.encode(effect.settled).decode(),
    ]


def value(errand: Errand) -> str:
    due = "" if errand.due_at is None else repr(errand.due_at)
    return "\t".join((str(errand.attempts), errand.sort, errand.tenant, due, errand.body.decode()))


def put(errand: Errand) -> list[Op]:
    ops = [["HSET", "errands", errand.id, value(errand)]]
    if errand.due_at is None:
        ops += [["ZREM", keys.due(errand.sort), errand.id], ["ZADD", keys.DONE, "0", errand.id]]
    else:
        ops.append(["ZADD", keys.due(errand.sort), repr(errand.due_at), errand.id])
    if errand.sort == "order":
        ops.append(["ZADD", keys.orders(errand.tenant), "0", errand.id])
    return ops


def drop(errand: Errand) -> list[Op]:
    ops = [["HDEL", "errands", errand.id], ["ZREM", keys.due(errand.sort), errand.id]]
    if errand.sort == "order":
        ops += [["ZREM", keys.orders(errand.tenant), errand.id], ["ZREM", keys.DONE, errand.id]]
    return ops
