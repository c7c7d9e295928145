"""Response headers that tell a client about the decision, if enabled."""

import pytest

from epp.request_control import EndCause
from epp.scheduling import Endpoint
from epp.testing import make_endpoint
from tools.harness.request_control import Epp, make_pool


@pytest.mark.parametrize(
    ("pool", "text"),
    [
        pytest.param(
            make_pool(), "default/a;score=1;margin=1;queued=0.000", id="the next is worse"
        ),
        pytest.param(
            [make_endpoint("ns/only")], "ns/only;score=1;queued=0.000", id="there is no other"
        ),
    ],
)
def test_the_response_has_the_decision_and_the_request_id(pool: list[Endpoint], text: str) -> None:
    epp = Epp(pool)
    epp.director._live._emit_decision_header = True
    routed = epp.handle(request_id="r-7")
    assert routed.wants_response_headers
    headers = routed.response_started(200)
    routed.close(EndCause.COMPLETED)
    assert headers == {"x-epp-decision": text, "x-request-id": "r-7"}


def test_it_is_off_by_default() -> None:
    routed = Epp(make_pool()).handle()
    assert not routed.wants_response_headers
    assert routed.response_started(200) == {}
    routed.close(EndCause.COMPLETED)
