"""``predicted-time-room-filter``: no endpoint passes while the best one has no room."""

from epp.scheduling import Endpoint
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.filters.predicted_time_room import PredictedTimeRoomFilter
from epp_plugins.predicted_time import Constants, FleetModel, RequestForecast
from epp_plugins.state_keys import PREDICTED_TIME

POOL = [make_endpoint("a"), make_endpoint("b")]


def make_model(trust_samples: int = 0) -> FleetModel:
    """Return a model with 0.1 s per 1000 tokens, in serial mode."""
    return FleetModel(
        Constants(prior_base_seconds=0.0, prior_unit_seconds=0.1, trust_samples=trust_samples)
    )


def kept(
    plugin: PredictedTimeRoomFilter, model: FleetModel, cached_at: str = "", tokens: float = 1000.0
) -> list[str]:
    """Return the endpoints for a request that has only a tenth of its tokens at one endpoint."""
    cached = {cached_at: tokens / 10} if cached_at else {}
    state = make_state({PREDICTED_TIME: RequestForecast(model, 0.0, tokens, cached)})
    found: list[Endpoint] = plugin.filter(make_request(), POOL, state)
    return [endpoint.name for endpoint in found]


def test_the_class_is_sound() -> None:
    check(PredictedTimeRoomFilter)


def test_all_pass_if_the_endpoint_of_the_least_cost_has_room() -> None:
    plugin, model = make_plugin(PredictedTimeRoomFilter), make_model()
    assert kept(plugin, model, cached_at="b") == ["a", "b"]
    model.sent("b", 1000.0, 0.0)  # 0.1 s of wait are room: at most 0.15 s
    assert kept(plugin, model, cached_at="b", tokens=9000.0) == ["a", "b"]


def test_none_is_kept_while_the_best_has_no_room_though_others_are_idle() -> None:
    plugin, model = make_plugin(PredictedTimeRoomFilter), make_model()
    model.sent("b", 2000.0, 0.0)
    assert kept(plugin, model, cached_at="b", tokens=50_000.0) == []
    assert kept(plugin, model) == ["a", "b"]


def test_in_a_session_a_held_request_reserves_its_time_for_the_ones_behind_it() -> None:
    plugin, model = make_plugin(PredictedTimeRoomFilter), make_model()
    model.sent("b", 2000.0, 0.0)
    plugin.session_began(0.0)
    assert kept(plugin, model, cached_at="b", tokens=50_000.0) == []
    # Uncached tokens: 50 000 / 10, so 0.5 s besides the 0.2 s in progress.
    assert model.wait("b", 0.0) > 0.69
    plugin.session_ended()
    assert model.wait("b", 0.0) < 0.21


def test_without_a_session_nothing_is_reserved() -> None:
    plugin, model = make_plugin(PredictedTimeRoomFilter), make_model()
    model.sent("b", 2000.0, 0.0)
    assert kept(plugin, model, cached_at="b", tokens=50_000.0) == []
    assert model.wait("b", 0.0) < 0.21


def test_all_pass_while_predictions_are_not_trusted_or_missing() -> None:
    plugin = make_plugin(PredictedTimeRoomFilter)
    assert kept(plugin, make_model(trust_samples=16)) == ["a", "b"]
    assert plugin.filter(make_request(), POOL, make_state({})) == POOL


def test_all_pass_if_all_are_excluded_after_failures() -> None:
    plugin, model = make_plugin(PredictedTimeRoomFilter), make_model()
    for name in ("a", "b"):
        model.failed(model.sent(name, 1000.0, 0.0), 0.0)
    assert kept(plugin, model) == ["a", "b"]
