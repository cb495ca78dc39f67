"""Every way to spell an address that nobody may be sent to, and a few that anybody may."""

from __future__ import annotations

import ipaddress

import pytest

from packhorse.errors import BlockedAddress, OutboundFailed
from packhorse.outbound import urls
from packhorse.outbound.addresses import Address, Allow, why_not
from packhorse.outbound.calls import Guard, Outbound, Policy

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.255.255",
    "172.32.0.1",
    "192.0.1.1",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2a00:1450:4001:82a::200e",
]

NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.7",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::2",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::",
    "2002:808:808::1",
    "2606:4700::5efe:7f00:1",
    "2606:4700::200:5efe:a00:1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_called(address: str) -> None:
    assert why_not(ipaddress.ip_address(address)) is None


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_may_not(address: str) -> None:
    assert why_not(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_nor_may_it_be_written_down_as_a_host(address: str) -> None:
    host = f"[{address}]" if ":" in address else address

    with pytest.raises(BlockedAddress) as refused:
        Outbound().check(f"https://{host}/hook")

    assert refused.value.code == "BLOCKED_ADDRESS"


MISSPELT = [
    "https://2130706433/",  # 127.0.0.1 as one number
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://127.1/",
    "https://127.0.1/",
    "https://0/",
    "https://0x/",
    "https://1.2.3.4.5/",
    "https://256.1.1.1/",
    "https://08.8.8.8/",
    "https://example.1/",
    "https://127.0.0.1./",
    "https://localhost./",
    "https://example.com./",
    "https://example..com/",
    "https://.example.com/",
    "https://-example.com/",
    "https://exam%70le.com/",
    "https://%31%32%37.0.0.1/",
    "https://１２７.０.０.１/",  # full-width digits
    "https://127。0。0。1/",  # an ideographic stop reads as a dot
    "https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    "https://exämple.com/",
    "https://user@example.com/",
    "https://user:word@example.com/",
    "https://example.com@127.0.0.1/",
    "https://example.com:443@127.0.0.1/",
    "https://@example.com/",
    "https://example.com\\@127.0.0.1/",
    "https:\\\\example.com/",
    "https:///example.com/",
    "https:example.com",
    "https://",
    "//example.com/",
    "example.com/hook",
    "",
    "file:///etc/passwd",
    "gopher://example.com/",
    "ftp://example.com/",
    "javascript:alert(1)",
    "https://example.com/ a",
    "https://example.com/\r\nHost: other",
    "https://exa\tmple.com/",
    "https://example.com\0.evil.test/",
    " https://example.com/",
    "https://[::1/",
    "https://[::1]evil.test/",
    "https://[fe80::1%25eth0]/",
    "https://[fe80::1%eth0]/",
    "https://[2606:4700::1.2.3]/",
    "https://[v1.fe80::a]/",
    "https://[1.1.1.1]/",
    "https://::1/",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:-1/",
    "https://example.com:80:90/",
    "https://example.com:ab/",
    f"https://{'a' * 64}.com/",
    f"https://{'a.' * 130}com/",
    f"https://example.com/{'a' * 2048}",
]


@pytest.mark.parametrize("url", MISSPELT)
def test_what_could_be_read_in_two_ways_is_not_read_at_all(url: str) -> None:
    with pytest.raises(BlockedAddress):
        urls.parse_url(url)


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("https://Example.COM", "example.com", 443, "/", "example.com"),
        ("HTTPS://example.com/Hook?a=b#c", "example.com", 443, "/Hook?a=b", "example.com"),
        ("https://example.com:8443/", "example.com", 8443, "/", "example.com:8443"),
        ("http://example.com:80/a", "example.com", 80, "/a", "example.com"),
        ("https://my_host.example.com/é", "my_host.example.com", 443, "/%C3%A9", "my_host.example.com"),
        ("https://xn--exmple-cua.com/%2e%2e", "xn--exmple-cua.com", 443, "/%2e%2e", "xn--exmple-cua.com"),
        ("https://[2606:4700::1111]:444/", "2606:4700::1111", 444, "/", "[2606:4700::1111]:444"),
        ("https://1.1.1.1/", "1.1.1.1", 443, "/", "1.1.1.1"),
        ("https://7.example.com/", "7.example.com", 443, "/", "7.example.com"),
    ],
)
def test_what_is_plain_is_read(url: str, host: str, port: int, path: str, authority: str) -> None:
    target = urls.parse_url(url)

    assert (target.host, target.port, target.path, target.authority) == (host, port, path, authority)


@pytest.mark.parametrize(
    "url", ["http://example.com/", "https://example.com:25/", "https://example.com:22/", "http://1.1.1.1/"]
)
def test_other_schemes_and_the_ports_of_other_services_are_refused(url: str) -> None:
    with pytest.raises(BlockedAddress):
        Outbound().check(url)


@pytest.mark.parametrize("url", ["https://example.com/", "https://example.com:8443/", "https://1.1.1.1/a?b=c"])
def test_a_public_address_is_fine(url: str) -> None:
    Outbound().check(url)


def test_plain_http_is_a_matter_of_policy() -> None:
    Outbound(policy=Policy(schemes=("https", "http"))).check("http://example.com/")


# What names lead to.


def guard(*found: str, allow: str = "") -> Guard:
    async def resolve(_: str) -> list[Address]:
        return [ipaddress.ip_address(each) for each in found]

    return Guard(Allow.of(allow), Policy(), resolve)


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_a_name_may_not_lead_to_what_is_not_public(address: str) -> None:
    with pytest.raises(BlockedAddress):
        await guard(address).addresses(urls.parse_url("https://example.com/"))


@pytest.mark.parametrize("found", [("1.1.1.1", "10.0.0.1"), ("10.0.0.1", "1.1.1.1"), ("1.1.1.1", "::1")])
async def test_one_address_that_is_not_public_speaks_against_all(found: tuple[str, ...]) -> None:
    with pytest.raises(BlockedAddress):
        await guard(*found).addresses(urls.parse_url("https://example.com/"))


async def test_a_name_that_leads_to_public_addresses_gives_them_in_order() -> None:
    found = await guard("1.1.1.1", "2606:4700::1111").addresses(urls.parse_url("https://example.com/"))

    assert [str(each) for each in found] == ["1.1.1.1", "2606:4700::1111"]


async def test_a_name_that_leads_nowhere_is_told_apart() -> None:
    with pytest.raises(OutboundFailed) as failed:
        await guard().addresses(urls.parse_url("https://example.com/"))

    assert failed.value.code == "NOT_RESOLVED"


@pytest.mark.parametrize(
    ("allow", "url", "found"),
    [
        ("127.0.0.0/8", "http://127.0.0.1:81/", "127.0.0.1"),
        ("::1", "http://[::1]/", "::1"),
        ("hooks.internal", "http://hooks.internal/", "10.1.2.3"),
        ("a.test, 10.1.0.0/16", "https://hooks.internal/", "10.1.2.3"),
        ("Hooks.Internal", "https://HOOKS.internal/", "10.1.2.3"),
    ],
)
async def test_an_operator_may_allow_more(allow: str, url: str, found: str) -> None:
    guarded = guard(found, allow=allow)

    guarded.check(urls.parse_url(url))
    addresses = await guarded.addresses(urls.parse_url(url))

    assert [str(each) for each in addresses] == [found]


@pytest.mark.parametrize(
    ("allow", "url", "found"),
    [
        ("10.1.0.0/16", "https://hooks.internal/", "10.2.0.1"),
        ("hooks.internal", "https://other.internal/", "10.1.2.3"),
        ("internal", "https://hooks.internal/", "10.1.2.3"),
        ("10.1.0.0/16", "http://example.com/", "1.1.1.1"),
    ],
)
async def test_but_no_more_than_that(allow: str, url: str, found: str) -> None:
    with pytest.raises(BlockedAddress):
        await guard(found, allow=allow).addresses(urls.parse_url(url))


@pytest.mark.parametrize("text", ["10.0.0.0/33", "10.0.0.1/8", "a b", "https://a.test", "0x7f.1", "a.test:80"])
def test_what_is_neither_host_nor_network_cannot_be_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="neither a host nor a network"):
        Allow.of(text)
