"""Encrypts secret parameters before anything is stored, and decrypts them for the process that runs the stage."""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from packhorse.core import json
from packhorse.core.json import replace_at, values_at
from packhorse.core.plan import Plan
from packhorse.core.redaction import MASK, SEALED, is_encrypted
from packhorse.define.validation import invalid
from packhorse.errors import NoSecretKey, SecretUnreadable
from packhorse.settings import secret_keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION = "1"
NONCE = 12


class Encryptor:
    """AES-256-GCM, with a key derived from the deployment's. A ciphertext names its key.

    It is bound to tenant and pipeline: copied into another record it cannot be decrypted.
    """

    def __init__(self, secret_key: str) -> None:
        """Of several keys, separated by commas, the first encrypts and all decrypt."""
        keys = [hmac.new(key.encode(), b"parameters", hashlib.sha256).digest() for key in secret_keys(secret_key)]
        self._key = keys[0] if keys else b""
        self._name = _name(self._key)
        self._keys = {_name(key): key for key in keys}

    def encrypt(self, parameters: bytes, plan: Plan, tenant: str) -> bytes:
        """Raises NoSecretKey, and InvalidInput for a mask in place of a secret."""
        if not plan.secrets:
            return parameters
        plain: Any = json.decode(parameters)
        copied = [path for path in plan.secrets if MASK in values_at(plain, [path])]
        if copied:
            mistakes = [{"field": ".".join(path), "message": "These dots only stand for a secret"} for path in copied]
            raise invalid("The parameters are not valid", mistakes)
        return json.encode(replace_at(plain, plan.secrets, lambda secret: self._encrypt_value(secret, plan, tenant)))

    def encrypt_rest(self, parameters: bytes, plan: Plan, tenant: str) -> bytes:
        """Encrypt secrets that are not encrypted yet, and again those that a replaced key has encrypted."""

        def encrypt(value: Any) -> Any:
            if is_encrypted(value):
                if value[SEALED].split(".")[1:2] == [self._name]:
                    return value
                value = self._decrypt_value(value, plan, tenant)
            return self._encrypt_value(value, plan, tenant)

        return json.encode(replace_at(json.decode(parameters), plan.secrets, encrypt))

    def decrypt(self, parameters: bytes, plan: Plan, tenant: str) -> bytes:
        """Raises NoSecretKey and SecretUnreadable."""
        if not plan.secrets:
            return parameters
        sealed: Any = json.decode(parameters)
        return json.encode(replace_at(sealed, plan.secrets, lambda secret: self._decrypt_value(secret, plan, tenant)))

    def fingerprint_secrets(self, parameters: bytes, plan: Plan) -> Any:
        """The parameters with a keyed hash in place of each secret."""

        def mark(secret: Any) -> str:
            return hmac.new(self._key, b"mark:" + json.encode(secret), hashlib.sha256).hexdigest()

        return replace_at(json.decode(parameters), plan.secrets, mark)

    def _cipher(self, name: str) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # slow to load, and rarely needed

        if not self._key:
            raise NoSecretKey
        if name not in self._keys:
            raise SecretUnreadable(reason="it was encrypted with another key than those set here")
        return AESGCM(self._keys[name])

    def _encrypt_value(self, secret: Any, plan: Plan, tenant: str) -> dict[str, str]:
        nonce = os.urandom(NONCE)
        data = nonce + self._cipher(self._name).encrypt(nonce, json.encode(secret), _associated_data(plan, tenant))
        return {SEALED: f"{VERSION}.{self._name}.{urlsafe_b64encode(data).decode()}"}

    def _decrypt_value(self, sealed: Any, plan: Plan, tenant: str) -> Any:
        from cryptography.exceptions import InvalidTag

        if not self._key:
            raise NoSecretKey
        try:
            version, name, data = sealed[SEALED].split(".")
            if version != VERSION:
                raise SecretUnreadable(reason="it was encrypted by another version of packhorse")
            cipher = self._cipher(name)
            raw = urlsafe_b64decode(data)
            return json.decode(cipher.decrypt(raw[:NONCE], raw[NONCE:], _associated_data(plan, tenant)))
        except (KeyError, TypeError, ValueError, AttributeError, InvalidTag, msgspec.DecodeError) as error:
            raise SecretUnreadable(reason="it is damaged") from error


@lru_cache(maxsize=8)
def get_encryptor(secret_key: str) -> Encryptor:
    """Cached: every submit needs it."""
    return Encryptor(secret_key)


def _name(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:8]


def _associated_data(plan: Plan, tenant: str) -> bytes:
    return json.encode([tenant, plan.pipeline])
