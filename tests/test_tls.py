"""Whoever would have to vouch is asked for only where a connection is encrypted; nobody is trusted unasked."""

from __future__ import annotations

import ssl

import pytest

from packhorse.tls import trust


@pytest.mark.parametrize("url", ["https://packhorse.example", "HTTPS://packhorse.example", "https://127.0.0.1:3003"])
def test_an_encrypted_connection_trusts_those_who_vouch_for_sites(url: str) -> None:
    context = trust(url)

    assert context.cert_store_stats()["x509_ca"] > 0
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("url", ["http://127.0.0.1:3003", "http://https.example", ""])
def test_any_other_trusts_nobody_rather_than_everybody(url: str) -> None:
    context = trust(url)

    assert context.cert_store_stats()["x509_ca"] == 0
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
