import pytest

from epp.request_control.plugins import ResponseHead
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.reporters.destination_endpoint_served import DestinationEndpointServedVerifier

PICKED = make_endpoint("default/picked", address="10.0.0.1:8000")
HEADER = "x-conformance-test-served-endpoint"
MISSING = "fail: missing destination endpoint served metadata"


@pytest.mark.parametrize(
    ("served", "shown"),
    [
        pytest.param("10.0.0.2:8000", "10.0.0.2:8000", id="another than was picked"),
        pytest.param("[fd00::1]:8000", "[fd00::1]:8000", id="an IPv6 address"),
        pytest.param("", MISSING, id="nothing: the pick does not stand in for it"),
    ],
)
def test_the_header_says_what_the_gateway_says(served: str, shown: str) -> None:
    head = ResponseHead(200, {HEADER: "a model server's own"}, served=served)
    plugin = make_plugin(DestinationEndpointServedVerifier)
    plugin.response_headers(make_request(), head, PICKED, make_state())
    assert head.set_headers == {HEADER: shown}


def test_the_class_is_sound() -> None:
    check(DestinationEndpointServedVerifier)


def test_a_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown field `header`"):
        make_plugin(DestinationEndpointServedVerifier, {"header": "x-other"})
