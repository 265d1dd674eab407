"""Entries in the waiting line: the addresses in them, and which of these a datagram is sent to."""

import base64
import ipaddress

import pytest

from pynamodb_mutex._protocol.waiting_line import (
    address_of,
    began_at,
    id_of,
    label_of,
    new_entry,
)

BITS = "0123456789abcdef" * 2
ID = "6b49d20089abcdef"
NOW = 1_800_000_000.0


def packed(address, port=5000):
    return ipaddress.ip_address(address).packed + port.to_bytes(2, "big")


def entry(address, port=5000, owner="she"):
    return new_entry(NOW, BITS, owner, packed(address, port))


@pytest.mark.parametrize(
    "address",
    ["10.0.0.7", "127.0.0.1", "192.168.255.254", "203.0.113.9", "::1", "2001:db8::1", "fe80::1"],
)
@pytest.mark.parametrize("port", [1, 255, 256, 65_535])
def test_address_in_an_entry_is_found(address, port):
    made = entry(address, port)
    assert (address_of(made), id_of(made), label_of(made)) == ((address, port), ID, "she")


@pytest.mark.parametrize("address", ["10.0.0.7", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"])
@pytest.mark.parametrize("owner", ["x" * 100, "ä" * 100, "a|b", "!CgAAB8Qw|"])
def test_entry_with_an_address_is_no_longer_than_others(address, owner):
    made = entry(address, owner=owner)
    assert len(made.encode()) <= 64
    assert owner.startswith(label_of(made))
    assert address_of(made) == (address, 5000)


@pytest.mark.parametrize(
    "address",
    [
        *("224.0.0.1", "239.255.255.255", "ff02::1"),  # multicast
        *("0.0.0.0", "::"),  # unspecified
        *("240.0.0.1", "255.255.255.255", "4000::1"),  # reserved, and broadcast
    ],
)
def test_address_that_is_not_that_of_one_host_is_ignored(address):
    assert address_of(entry(address)) is None


@pytest.mark.parametrize(
    "written",
    [
        "",
        "!",
        "AAAA",
        "not base64",
        "ÄÖÜ",
        base64.b64encode(packed("10.0.0.7")).decode()[:-1],
        base64.b64encode(packed("10.0.0.7")).decode() + "\n",
        base64.b64encode(packed("10.0.0.7")[:-1]).decode(),
        base64.b64encode(packed("10.0.0.7") + b"x").decode(),
        base64.b64encode(packed("10.0.0.7", 0)).decode(),
        base64.b64encode(b"10.0.0.7:5000").decode(),
        "10.0.0.7:5000",
    ],
)
def test_broken_address_is_ignored(written):
    assert address_of(f"{ID}!{written}|she") is None


@pytest.mark.parametrize("owner", ["x!CgAAB8Qw|y", "!CgAAB8Qw|y", "!CgAAB8Qw", "|!CgAAB8Qw|"])
def test_label_is_never_taken_for_an_address(owner):
    assert address_of(f"{ID}!CgAAB8Qw|x") is not None
    made = new_entry(NOW, BITS, owner)
    assert (address_of(made), label_of(made)) == (None, owner)


@pytest.mark.parametrize("made", ["", "x", ID, f"{ID}|", "!CgAAB8Qw|", f"{ID[:-1]}!CgAAB8Qw|x"])
def test_other_entries_have_no_address(made):
    assert address_of(made) is None


def test_entry_shows_since_when_its_waiter_waits_if_server_time_was_known():
    assert began_at(entry("10.0.0.7")) == NOW
    assert began_at(new_entry(NOW + 0.9, BITS, "she")) == NOW
    for other in (new_entry(None, BITS, "she"), "", "x", "not hexadecimal"):
        assert began_at(other) is None
