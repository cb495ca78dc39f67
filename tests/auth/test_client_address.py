"""Who it really was, behind proxies that are ours and proxies that are not."""

from __future__ import annotations

import pytest

from packhorse.auth.authenticate import client_address, networks, rate_limit_address

OURS = "10.0.0.0/8, 127.0.0.1, fd00::/8"


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # anybody can say so
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1"], "198.51.100.1"),  # what the client itself sent is further left
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1, "], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_the_last_proxy_that_is_trusted_says_who_it_was(peer: str, forwarded: list[str], found: str) -> None:
    assert client_address(peer, forwarded, networks(OURS)) == found


def test_nobody_is_trusted_unless_named() -> None:
    assert client_address("10.0.0.1", ["198.51.100.1"], networks("")) == "10.0.0.1"


@pytest.mark.parametrize("text", ["nonsense", "10.0.0.1/8", "10.0.0.0/99"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"10\.0|nonsense"):
        networks(text)


def test_all_addresses_of_one_customer_count_as_one() -> None:
    assert rate_limit_address("2001:db8:1:2::1") == rate_limit_address("2001:db8:1:2:ffff::1")
    assert rate_limit_address("2001:db8:1:2::1") != rate_limit_address("2001:db8:1:3::1")
    assert rate_limit_address("198.51.100.1") != rate_limit_address("198.51.100.2")
