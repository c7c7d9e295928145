"""Requests whose endpoint a signed header forces, at the director."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from epp.request_control import AdmissionDeniedError, Admitter, EndCause, RequestError
from epp.request_control.errors import ForcedEndpointMissingError, ForceDeniedError
from epp.request_control.fallbacks import fallbacks
from epp.request_control.force_header import signed
from epp.request_control.force_keys import ForceKeys
from epp.scheduling import CycleState, Endpoint, LLMRequest
from epp.testing import make_endpoint
from tools.harness.request_control import Epp, NotingPlugin, RefusingFilter, make_pool

KEY = b"k" * 32
GONE = make_endpoint("default/c", address="10.0.0.3:8000")


def forcing(endpoint: str, *, key: bytes = KEY, expires_at: int = 160) -> dict[str, str]:
    """Return the header; the clock of `Epp` begins at 100."""
    return {"x-epp-force-endpoint": signed(endpoint, expires_at, key)}


@pytest.fixture
def keys(tmp_path: Path) -> ForceKeys:
    path = tmp_path / "keys"
    path.write_bytes(KEY)
    return ForceKeys(path)


class NobodyAdmitted(Admitter):
    """Refuses every request."""

    type: ClassVar[str] = "nobody-admitted"

    def __init__(self) -> None:
        self.name = "nobody"

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        raise AdmissionDeniedError("nobody")


@pytest.mark.parametrize("wanted", ["default/b", "b", "10.0.0.2:8000"])
def test_it_goes_there_although_filters_and_scorers_would_not(keys: ForceKeys, wanted: str) -> None:
    notes: list[str] = []
    epp = Epp(
        make_pool(),
        filters=[RefusingFilter()],
        plugins=[NotingPlugin("noting", notes)],
        force_keys=keys,
    )
    with capture_logs() as logs:
        routed = epp.handle(headers=forcing(wanted))
        assert routed.endpoint.name == "default/b"
        assert routed.decision.destination == "10.0.0.2:8000"
        assert routed.decision.is_forced
        assert fallbacks(routed.decision, 3) == []
        assert [each.load.in_flight for each in epp.endpoints] == [0, 1]
        routed.close(EndCause.COMPLETED)
    assert epp.in_flight == 0
    assert notes == [
        *("noting: prepare", "noting: attach", "noting: pre_request with 1 in flight"),
        "noting: response_complete",
    ]
    (line,) = logs
    assert (line["endpoint"], line["forced"]) == ("default/b", True)
    assert epp.value("forced_requests_total", result="routed") == 1


def test_an_endpoint_that_gets_no_other_requests_gets_this_one(keys: ForceKeys) -> None:
    epp = Epp(make_pool(), draining=[GONE], force_keys=keys)
    routed = epp.handle(headers=forcing("default/c"))
    assert routed.endpoint is GONE
    routed.close(EndCause.COMPLETED)
    assert GONE.load.in_flight == 0


def test_other_requests_are_decided_as_ever(keys: ForceKeys) -> None:
    epp = Epp(make_pool(), force_keys=keys)
    with capture_logs() as logs:
        routed = epp.handle()
        routed.close(EndCause.COMPLETED)
    assert (routed.endpoint.name, routed.decision.is_forced) == ("default/a", False)
    assert epp.total("forced_requests_total") == 0
    assert not logs[0].get("forced")


def test_without_keys_the_header_is_ignored() -> None:
    epp = Epp(make_pool())
    routed = epp.handle(headers={"x-epp-force-endpoint": "nonsense"})
    routed.close(EndCause.COMPLETED)
    assert routed.endpoint.name == "default/a"


@pytest.mark.parametrize(
    ("headers", "kind", "why", "result"),
    [
        pytest.param(
            forcing("default/b", key=b"o" * 32), ForceDeniedError, "no key of", "denied", id="key"
        ),
        pytest.param(
            forcing("default/b", expires_at=90),
            ForceDeniedError,
            "expired 10 s ago",
            "denied",
            id="expired",
        ),
        pytest.param(
            {"x-epp-force-endpoint": "default/b"},
            ForceDeniedError,
            "malformed",
            "denied",
            id="malformed",
        ),
        pytest.param(
            forcing("default/x"),
            ForcedEndpointMissingError,
            "there is no endpoint 'default/x'; the pool has default/a, default/b",
            "no-endpoint",
            id="unknown",
        ),
    ],
)
def test_it_is_refused_and_never_sent_elsewhere(
    keys: ForceKeys, headers: dict[str, str], kind: type[RequestError], why: str, result: str
) -> None:
    epp = Epp(make_pool(), force_keys=keys)
    with pytest.raises(kind, match=why), capture_logs() as logs:
        epp.handle(headers=headers)
    assert epp.in_flight == 0
    assert (logs[0]["stage"], logs[0]["status"]) == ("forced-endpoint", kind.status)
    assert epp.value("forced_requests_total", result=result) == 1
    assert epp.total("forced_requests_total") == 1


def test_a_name_of_two_endpoints_is_refused(keys: ForceKeys) -> None:
    twins = [make_endpoint(f"{space}/b", address=f"10.0.0.{space}:80") for space in ("1", "2")]
    epp = Epp(twins, force_keys=keys)
    with pytest.raises(ForcedEndpointMissingError, match="'b' is more than one endpoint: 1/b, 2/b"):
        epp.handle(headers=forcing("b"))


def test_admitters_refuse_it_like_any_other(keys: ForceKeys) -> None:
    epp = Epp(make_pool(), plugins=[NobodyAdmitted()], force_keys=keys)
    with pytest.raises(AdmissionDeniedError, match="nobody"):
        epp.handle(headers=forcing("default/b"))
    assert epp.in_flight == 0


def test_the_response_says_that_it_was_forced(keys: ForceKeys) -> None:
    epp = Epp(make_pool(), force_keys=keys)
    epp.director._live._emit_decision_header = True
    routed = epp.handle(headers=forcing("default/b"), request_id="r-7")
    headers = routed.response_started(200)
    routed.close(EndCause.COMPLETED)
    assert headers == {"x-epp-decision": "default/b;forced;queued=0.000", "x-request-id": "r-7"}
