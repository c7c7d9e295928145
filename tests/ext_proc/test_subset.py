"""Subset hints; tests/conformance has the protocol's rules for them, E3 to E5."""

import pytest

from epp.ext_proc import processing_request
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import OutsideSubsetError, subset
from epp.request_control.subset import within
from epp.testing import make_endpoint


def test_a_null_is_no_hint() -> None:
    request = pb.ProcessingRequest()
    hint = request.metadata_context.filter_metadata[processing_request.SUBSET_NAMESPACE]
    hint.update({processing_request.SUBSET_KEY: None})
    assert processing_request.decode(request.SerializeToString())[2].subset is None


@pytest.mark.parametrize("entry", ["[fd00::7]:8000", "[fd00::7]", "fd00::7"])
def test_an_ipv6_address_is_found_in_each_of_its_forms(entry: str) -> None:
    endpoints = [
        make_endpoint("a", address="[fd00::7]:8000"),
        make_endpoint("b", address="[fd00::8]:8000"),
    ]
    assert list(within((entry,), endpoints)) == endpoints[:1]


def test_order_is_that_of_the_pool() -> None:
    addresses = ("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000")
    endpoints = [make_endpoint(address, address=address) for address in addresses]
    assert list(within((addresses[2], addresses[0]), endpoints)) == [endpoints[0], endpoints[2]]
    with pytest.raises(OutsideSubsetError, match="none of the 3 endpoints"):
        within((), endpoints)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([f"10.0.0.1:{port}" for port in range(8000, 9100)], id="many"),
        pytest.param(["10.0.0.1:8000", "x" * 40_000], id="long"),
    ],
)
def test_a_huge_hint_applies_and_is_not_cached(entries: list[str]) -> None:
    endpoints = [make_endpoint("a", address="10.0.0.1:8000")]
    kept = subset._cached_parts.cache_info().currsize
    assert list(within(entries, endpoints)) == endpoints
    assert subset._cached_parts.cache_info().currsize == kept
