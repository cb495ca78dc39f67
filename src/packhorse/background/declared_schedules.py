"""Creates the schedules that an app's code declares, and updates them until a person edits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from packhorse.core import json, schedules
from packhorse.core.plan import Definition, Plan
from packhorse.core.schedules import Declared, Schedule, Terms
from packhorse.errors import Conflict, NoSecretKey, SecretUnreadable
from packhorse.jobs.encryption import Encryptor
from packhorse.log import log
from packhorse.store.base import Store
from packhorse.store.collections import schedules as schedule_records

TENANT = "default"
"""Apps do not know about tenants."""


async def declare(
    store: Store, declared: Sequence[Declared], definitions: Sequence[Definition], encryptor: Encryptor
) -> None:
    """A schedule whose secrets cannot be encrypted, without a key, is logged and skipped."""
    plans = {each.pipeline: json.plan_from(each.plan) for each in definitions}
    for each in declared:
        try:
            await _declare(store, each, plans, encryptor)
        except NoSecretKey as error:
            log.duty_failed(f"schedule {each.id}", error)


async def _declare(store: Store, declared: Declared, plans: Mapping[str, Plan], encryptor: Encryptor) -> None:
    """Read, decide, write; repeat if another starting worker was faster."""
    while True:
        found, now = await schedule_records.get(store, TENANT, declared.id), store.now()
        terms = _encrypt_terms(declared.terms, found, plans[declared.terms.pipeline], encryptor)
        if found is None:
            move = schedules.create(TENANT, declared.id, terms, author=schedules.CODE, now=now, declared=terms)
        else:
            changed = schedules.declare(found, terms, now=now)
            if changed is None:
                return
            move = changed
        try:
            await schedule_records.move(store, move)
        except Conflict:
            continue
        return


def _encrypt_terms(terms: Terms, found: Schedule | None, plan: Plan, encryptor: Encryptor) -> Terms:
    """With encrypted secrets. If the declaration has not changed, its stored bytes are kept."""
    if not plan.secrets:
        return terms
    kept = None if found is None else found.declared
    if kept is not None and kept.pipeline == terms.pipeline and _is_same(kept, terms, plan, encryptor):
        return replace(terms, parameters=kept.parameters)
    return replace(terms, parameters=encryptor.encrypt(terms.parameters, plan, TENANT))


def _is_same(kept: Terms, terms: Terms, plan: Plan, encryptor: Encryptor) -> bool:
    try:
        return bool(json.decode(encryptor.decrypt(kept.parameters, plan, TENANT)) == json.decode(terms.parameters))
    except SecretUnreadable:  # encrypted with a key that is no longer used
        return False
