"""What Parley says that it sends is what leaves the hosts, and what TLS adds is what it should."""

from typing import Any

import pytest

from benchmarks import peers
from tests import namespaces

RECORD_BYTES, RECORD_OVERHEAD = 16384, 22
"""Of TLS 1.3: plain bytes of a record, and what its header, its type and its tag add."""


@pytest.fixture(scope="module")
def hosts() -> list[dict[str, Any]]:
    if reason := namespaces.missing():
        pytest.skip(reason)
    return peers.measure("", 2)


def test_interfaces_count_what_parley_counts_and_the_overhead_of_tls(
    hosts: list[dict[str, Any]],
) -> None:
    for host in hosts:
        counted = host["counted"]["links"]
        assert counted == host["counted"]["gloo"]
        assert counted > 2 * peers.BLOCK * 2 * 1_200_000
        expected = counted * (1 + RECORD_OVERHEAD / RECORD_BYTES)
        assert host["wire"]["links"] == pytest.approx(expected, rel=0.05)
        assert host["wire"]["links"] > expected
