"""What the script of a commit is told about failures."""

from __future__ import annotations

from packhorse.core import failures as rules
from packhorse.core import json
from packhorse.core.changes import RecordFailure, SettleFailures
from packhorse.core.failures import new_alert, put_action
from packhorse.store.redis import keys

Op = list[str]


def record_failure(effect: RecordFailure) -> list[Op]:
    """The operations that keep a failure and count it. The script finds out whether its group is new."""
    failure = effect.failure
    group = rules.new_group(failure)
    facts = {
        "pipeline": group.pipeline, "stage": group.stage or "", "code": group.code, "message": group.message,
        "first_seen": repr(group.first_seen),
    }  # fmt: skip
    alerts = [put_action(new_alert(failure, kind)) for kind in ("new", "again")]
    return [
        [
            "fail", failure.id, failure.job_id, keys.group(failure.tenant, failure.fingerprint), failure.user,
            str(rules.MAX_USERS), repr(failure.at), group.seen, json.encode(failure).decode(),
            *(each.body.decode() for each in alerts), alerts[0].id, *(text for pair in facts.items() for text in pair),
        ]
    ]  # fmt: skip


def settle_failures(job_id: str, effect: SettleFailures) -> Op:
    return [
        "settle_failures",
        job_id,
        effect.was.value,
        effect.now.value,
        "" if effect.settled is None else json.encode(effect.settled).decode(),
    ]
