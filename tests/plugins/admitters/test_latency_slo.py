from typing import Any

import msgspec
import pytest

from epp.request_control.plugins import AdmissionDeniedError
from epp.scheduling import CycleState, StateKey
from epp.testing import check, make_endpoint, make_request, make_state
from epp_plugins.admitters.latency_slo import LatencySloAdmitter, Params
from epp_plugins.state_keys import LATENCY_PREDICTIONS, LatencyPrediction

SLO = {"x-llm-d-slo-ttft-ms": "500.5"}
GOOD = LatencyPrediction(is_ttft_valid=True, is_tpot_valid=True)
LATE = LatencyPrediction(is_ttft_valid=False, is_tpot_valid=True)
SLOW = LatencyPrediction(is_ttft_valid=True, is_tpot_valid=False)
BUSY: dict[str, Any] = {"running_requests": 3, "kv_cache_usage": 0.5}


def is_denied(
    predictions: dict[str, LatencyPrediction] | None,
    *endpoints: dict[str, Any],
    priority: int = -1,
    headers: dict[str, str] = SLO,
    producer: str = "",
    key: StateKey[Any] = LATENCY_PREDICTIONS,
) -> bool:
    params = msgspec.convert({"latencyPredictionInfoProducerName": producer}, Params)
    state = CycleState() if predictions is None else make_state({key: predictions})
    pool = [make_endpoint(name, **row) for name, row in zip("abc", endpoints, strict=False)]
    try:
        LatencySloAdmitter("admitter", params).admit(
            make_request(priority=priority, headers=headers), pool, state
        )
    except AdmissionDeniedError:
        return True
    return False


def test_the_class_is_sound() -> None:
    check(LatencySloAdmitter)


@pytest.mark.parametrize(
    ("predictions", "endpoints", "denied"),
    [
        pytest.param({"a": LATE, "b": SLOW}, (BUSY, BUSY), True, id="nobody would be in time"),
        pytest.param({"a": LATE, "b": GOOD}, (BUSY, BUSY), False, id="one would be"),
        pytest.param({"b": LATE}, (BUSY, BUSY), True, id="one is not predicted"),
        pytest.param(None, (BUSY,), False, id="no predictions"),
        pytest.param({}, (BUSY,), False, id="empty predictions"),
        pytest.param({"z": LATE}, (BUSY,), False, id="predictions for others"),
        pytest.param(
            {"a": LATE, "b": LATE}, (BUSY, {"kv_cache_usage": 0.5}), False, id="one is idle"
        ),
        pytest.param(
            {"a": LATE}, ({"kv_cache_usage": 0.5, "in_flight": 1},), True, id="just sent there"
        ),
        pytest.param(
            {"a": LATE, "b": LATE},
            (BUSY, {"running_requests": 3, "kv_cache_usage": 0.019}),
            False,
            id="one is cold",
        ),
        pytest.param(
            {"a": LATE}, ({"running_requests": 3, "kv_cache_usage": 0.02},), True, id="just warm"
        ),
    ],
)
def test_who_is_turned_away(
    predictions: dict[str, LatencyPrediction] | None,
    endpoints: tuple[dict[str, Any], ...],
    denied: bool,
) -> None:
    assert is_denied(predictions, *endpoints) is denied


@pytest.mark.parametrize("priority", [0, 1])
def test_only_sheddable_requests_are_turned_away(priority: int) -> None:
    assert not is_denied({"a": LATE}, BUSY, priority=priority)


@pytest.mark.parametrize(
    ("headers", "denied"),
    [
        pytest.param({}, False, id="no SLO"),
        pytest.param({"x-llm-d-slo-ttft-ms": "soon"}, False, id="no number"),
        pytest.param({"x-llm-d-slo-tpot-ms": "20"}, True, id="tokens"),
        pytest.param({"x-slo-ttft-ms": "500"}, True, id="older name"),
        pytest.param({"x-slo-tpot-ms": "20"}, True, id="older name for tokens"),
    ],
)
def test_an_slo_must_be_named(headers: dict[str, str], denied: bool) -> None:
    assert is_denied({"a": LATE}, BUSY, headers=headers) is denied


def test_the_named_producer_is_believed() -> None:
    mine = StateKey[Any]("LatencyPredictionInfoDataKey/mine")
    assert is_denied({"a": LATE}, BUSY, producer="mine", key=mine)
    assert not is_denied({"a": LATE}, BUSY, producer="mine")


def test_the_response_is_429_and_says_why() -> None:
    admitter, state = LatencySloAdmitter("mine", Params()), CycleState()
    state.write(LATENCY_PREDICTIONS, {"a": LATE})
    with pytest.raises(
        AdmissionDeniedError, match="'mine': the request's priority is -3"
    ) as caught:
        admitter.admit(make_request(priority=-3, headers=SLO), [make_endpoint("a", **BUSY)], state)
    assert caught.value.status == 429


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `threshold`"):
        msgspec.convert({"threshold": 1}, Params)
