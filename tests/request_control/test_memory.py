"""The source of a request."""

import pytest

from epp.request_control import source_of

NAMES = ("x-envoy-external-address", "x-forwarded-for")


@pytest.mark.parametrize(
    ("headers", "source"),
    [
        pytest.param({}, "", id="nobody says"),
        pytest.param({"x-forwarded-for": "10.0.0.9"}, "10.0.0.9", id="one address"),
        pytest.param({"x-forwarded-for": "1.1.1.1, 10.0.0.9"}, "10.0.0.9", id="the last one"),
        pytest.param(
            {"x-forwarded-for": "1.1.1.1", "x-envoy-external-address": "10.0.0.9"},
            "10.0.0.9",
            id="the first header",
        ),
        pytest.param({"x-forwarded-for": "a" * 100}, "a" * 64, id="cut"),
        pytest.param({"x-forwarded-for": "tenant:7"}, "tenant:7", id="a name with a colon"),
        pytest.param({"x-forwarded-for": "::ffff:10.0.0.9"}, "10.0.0.9", id="IPv4 in IPv6"),
        pytest.param({"x-forwarded-for": "fe80::1%eth0"}, "fe80::/64", id="an interface"),
    ],
)
def test_the_source_is_what_the_gateway_says(headers: dict[str, str], source: str) -> None:
    assert source_of(headers, NAMES) == source


def test_the_addresses_of_one_client_are_one_source() -> None:
    """A client has 2**64 IPv6 addresses, and got a share for each."""
    sources = {source_of({"x-forwarded-for": f"2001:db8::{n:x}:{n:x}"}, NAMES) for n in range(100)}
    assert sources == {"2001:db8::/64"}
    assert source_of({"x-forwarded-for": "2001:db8:0:1::1"}, NAMES) not in sources
