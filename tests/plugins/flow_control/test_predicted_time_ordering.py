"""``predicted-time-ordering-policy``: arrival, least predicted time and objective."""

from typing import Any

import pytest
from flow_control.candidates import NotingCandidate

from epp.flow_control.plugins import QueuedRequest
from epp.scheduling import CycleState
from epp.testing import check, make_flow, make_plugin, make_request, make_state
from epp_plugins.flow_control.predicted_time_ordering import PredictedTimeOrderingPolicy
from epp_plugins.predicted_time import Constants, FleetModel, RequestForecast
from epp_plugins.state_keys import PREDICTED_TIME


class Forecast(NotingCandidate):
    """A request with a forecast."""

    def __init__(
        self, received_at: float, forecast: RequestForecast | None, slo_ms: str | None = None
    ) -> None:
        headers = {} if slo_ms is None else {"x-llm-d-slo-ttft-ms": slo_ms}
        super().__init__(make_request(headers=headers), received_at)
        self._state = make_state({} if forecast is None else {PREDICTED_TIME: forecast})

    def state(self) -> CycleState:
        return self._state


def key(received_at: float, tokens: float, cached_at: str = "", trust_samples: int = 0) -> float:
    model = FleetModel(
        Constants(prior_base_seconds=0.0, prior_unit_seconds=0.1, trust_samples=trust_samples)
    )
    model.endpoint("a")
    model.endpoint("b")
    cached = {cached_at: 100.0} if cached_at else {}
    return key_of(received_at, RequestForecast(model, received_at, tokens, cached))


def key_of(
    received_at: float,
    forecast: RequestForecast | None,
    slo_ms: str | None = None,
    **parameters: Any,
) -> float:
    queued = QueuedRequest(
        Forecast(received_at, forecast, slo_ms),
        flow=make_flow(),
        sequence=1,
        enqueued_at=received_at,
        ttl_seconds=None,
    )
    return make_plugin(PredictedTimeOrderingPolicy, parameters).key(queued)


def test_the_class_is_sound() -> None:
    check(PredictedTimeOrderingPolicy)


def test_a_short_request_goes_before_a_long_one_that_came_a_little_earlier() -> None:
    assert key(10.0, 20_000.0) > key(11.9, 500.0)  # 2 s and 0.05 s
    assert key(10.0, 20_000.0) < key(12.0, 500.0)


def test_the_endpoint_with_the_longest_cached_prefix_counts() -> None:
    assert key(10.0, 20_000.0, cached_at="b") < key(10.0, 500.0)


def test_the_order_is_that_of_receipt_while_nothing_is_known() -> None:
    assert key(10.0, 20_000.0, trust_samples=16) == key_of(10.0, None)
    assert key_of(11.0, None) - key_of(10.0, None) == 1.0


@pytest.mark.parametrize(
    ("slo_ms", "later"),
    [
        pytest.param("1000", 0.3, id="0.3 times 1 s"),
        pytest.param("500.5", 0.15015, id="a fraction of a millisecond"),
        pytest.param("10000", 3.0, id="0.3 times 10 s"),
        pytest.param(None, 3.0, id="none is 10 s"),
        pytest.param("soon", 3.0, id="no number"),
        pytest.param("-1", 3.0, id="below 0"),
        pytest.param("1e12", 18.0, id="60 s at most"),
    ],
)
def test_a_part_of_the_objective_is_added(slo_ms: str | None, later: float) -> None:
    assert key_of(100.0, None, slo_ms) - 100.0 == pytest.approx(later)


def test_an_objective_may_be_ignored_or_have_another_default() -> None:
    assert key_of(100.0, None, "5000", sloWeight=0) == 100.0
    assert key_of(100.0, None, defaultSloSeconds=2) == pytest.approx(100.6)


@pytest.mark.parametrize("parameters", [{"sloWeight": 1.5}, {"defaultSloSeconds": 61}])
def test_what_is_out_of_range_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="<= "):
        key_of(0.0, None, **parameters)
