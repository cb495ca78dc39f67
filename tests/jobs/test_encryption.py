from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.plan import Plan, StagePlan
from packhorse.core.redaction import MASK, SEALED
from packhorse.errors import InvalidInput, NoSecretKey, SecretUnreadable
from packhorse.jobs.encryption import Encryptor

PLAN = Plan("fetch", (StagePlan("get"),), secrets=(("key",), ("headers", "*")))
OPEN = replace(PLAN, secrets=())
GIVEN = json.encode({"url": "u", "key": "canary-1", "headers": {"A": "canary-2"}})


def get_encryptor(key: str = "k" * 40) -> Encryptor:
    return Encryptor(key)


def test_what_is_sealed_can_be_opened_and_not_be_read() -> None:
    sealed = get_encryptor().encrypt(GIVEN, PLAN, "acme")

    assert b"canary" not in sealed
    assert json.decode(sealed)["url"] == "u"
    assert get_encryptor().decrypt(sealed, PLAN, "acme") == GIVEN


def test_the_same_secret_is_sealed_differently_each_time() -> None:
    assert get_encryptor().encrypt(GIVEN, PLAN, "acme") != get_encryptor().encrypt(GIVEN, PLAN, "acme")


def test_without_secrets_nothing_is_done() -> None:
    assert get_encryptor("").encrypt(GIVEN, OPEN, "acme") == GIVEN
    assert get_encryptor("").decrypt(GIVEN, OPEN, "acme") == GIVEN
    assert get_encryptor("").fingerprint_secrets(GIVEN, OPEN) == json.decode(GIVEN)


def test_without_a_key_secrets_are_not_taken() -> None:
    with pytest.raises(NoSecretKey):
        get_encryptor("").encrypt(GIVEN, PLAN, "acme")
    with pytest.raises(NoSecretKey):
        get_encryptor("").decrypt(get_encryptor().encrypt(GIVEN, PLAN, "acme"), PLAN, "acme")


def test_another_key_opens_nothing_and_says_why() -> None:
    with pytest.raises(SecretUnreadable, match="another key"):
        get_encryptor("x" * 40).decrypt(get_encryptor().encrypt(GIVEN, PLAN, "acme"), PLAN, "acme")


@pytest.mark.parametrize(
    ("plan", "tenant"), [(PLAN, "evil"), (replace(PLAN, pipeline="echo"), "acme")], ids=["tenant", "pipeline"]
)
def test_what_is_copied_into_anothers_record_cannot_be_opened(plan: Plan, tenant: str) -> None:
    with pytest.raises(SecretUnreadable, match="damaged"):
        get_encryptor().decrypt(get_encryptor().encrypt(GIVEN, PLAN, "acme"), plan, tenant)


def _damaged(sealed: bytes) -> list[bytes]:
    text: str = json.decode(sealed)["key"][SEALED]
    others = [
        text[:-8],
        text.replace(".", ""),
        "",
        7,
        None,
        {"a": 1},
        text[:-9] + ("A" if text[-9] != "A" else "B") + text[-8:],
    ]
    return [json.encode({"key": {SEALED: other}}) for other in others] + [json.encode({"key": "plain"})]


@pytest.mark.parametrize("n", range(8))
def test_what_is_damaged_is_said_to_be(n: int) -> None:
    data = _damaged(get_encryptor().encrypt(GIVEN, PLAN, "acme"))[n]

    with pytest.raises(SecretUnreadable):
        get_encryptor().decrypt(data, PLAN, "acme")


def test_dots_are_not_taken_for_a_secret() -> None:
    with pytest.raises(InvalidInput) as refused:
        get_encryptor().encrypt(json.encode({"key": "ok", "headers": {"A": MASK}}), PLAN, "acme")

    assert [each["field"] for each in refused.value.errors] == ["headers.*"]


def test_marks_are_equal_for_equal_secrets_only_and_depend_on_the_key() -> None:
    other = json.encode({"url": "u", "key": "canary-1", "headers": {"A": "canary-3"}})
    mark = get_encryptor().fingerprint_secrets(GIVEN, PLAN)

    assert "canary" not in repr(mark)
    assert mark == get_encryptor().fingerprint_secrets(GIVEN, PLAN)
    assert mark != get_encryptor().fingerprint_secrets(other, PLAN)
    assert mark != get_encryptor("x" * 40).fingerprint_secrets(GIVEN, PLAN)


OLD, NEW = "o" * 40, "n" * 40


def test_of_several_keys_the_first_encrypts_and_all_decrypt() -> None:
    before = get_encryptor(OLD).encrypt(GIVEN, PLAN, "acme")
    during = get_encryptor(f"{NEW}, {OLD}")
    after = during.encrypt(GIVEN, PLAN, "acme")

    assert during.decrypt(before, PLAN, "acme") == during.decrypt(after, PLAN, "acme") == GIVEN
    assert get_encryptor(NEW).decrypt(after, PLAN, "acme") == GIVEN
    with pytest.raises(SecretUnreadable, match="another key"):
        get_encryptor(NEW).decrypt(before, PLAN, "acme")
    with pytest.raises(SecretUnreadable):
        get_encryptor(OLD).decrypt(after, PLAN, "acme")


def test_what_is_saved_again_is_encrypted_with_the_key_in_use() -> None:
    before = get_encryptor(OLD).encrypt(GIVEN, PLAN, "acme")
    during = get_encryptor(f"{NEW},{OLD}")

    renewed = during.encrypt_rest(before, PLAN, "acme")

    assert get_encryptor(NEW).decrypt(renewed, PLAN, "acme") == GIVEN
    assert during.encrypt_rest(renewed, PLAN, "acme") == renewed
    with pytest.raises(SecretUnreadable):
        get_encryptor(NEW).encrypt_rest(before, PLAN, "acme")
