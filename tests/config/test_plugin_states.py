"""The page of the plugins' states."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from epp.config.plugin_states import MAX_VALUES, plugin_states
from epp.flow_control.sessions import SessionPlugin
from epp.request_control import EndCause
from epp.scheduling import CycleState, Plugin, ProfileResult, SchedulingResult, ScoredEndpoint
from epp.testing import make_endpoint, make_request
from epp_plugins.data_producers.approx_prefix_cache import ApproxPrefixCacheProducer
from epp_plugins.data_producers.approx_prefix_cache import Params as PrefixParams
from epp_plugins.data_producers.inflight_load import InflightLoadProducer
from epp_plugins.data_producers.inflight_load import Params as LoadParams
from epp_plugins.data_producers.prefix_index import PrefixIndex
from epp_plugins.scorers.no_hit_lru import NoHitLruScorer
from epp_plugins.scorers.no_hit_lru import Params as LruParams
from epp_plugins.session_bindings import SessionBindings


class Dumping(Plugin):
    """Dumps the given state, or fails."""

    type = "dumping"

    def __init__(self, name: str, state: Any = None, error: BaseException | None = None) -> None:
        self.name = name
        self.state = state
        self.error = error

    def dump_state(self) -> Mapping[str, object] | None:
        if self.error is not None:
            raise self.error
        state: Mapping[str, object] | None = self.state
        return state


class SessionDumping(SessionPlugin):
    """A session plugin with a state."""

    name = "a"

    def dump_state(self) -> Mapping[str, object]:
        return {"jobs": 2}


def page_of(*plugins: Plugin) -> Any:
    return plugin_states({each.name: each for each in plugins})


def test_each_plugin_has_a_state_or_a_message() -> None:
    page = page_of(Dumping("b", {"entries": 3}), Dumping("a"))
    assert datetime.fromisoformat(page["timestamp"]).tzinfo is not None
    assert page["plugins"] == {
        "a": {
            "name": "a",
            "type": "dumping",
            "message": "plugin does not support state collection",
        },
        "b": {"name": "b", "type": "dumping", "state": {"entries": 3}},
    }
    assert list(page["plugins"]) == ["a", "b"]


@pytest.mark.parametrize("error", [ValueError("my prompt"), SystemExit("my prompt")])
def test_a_plugin_that_fails_does_not_hide_the_others(error: BaseException) -> None:
    with capture_logs() as lines:
        page = page_of(Dumping("bad", error=error), Dumping("good", {"x": 1}))
    kind = type(error).__name__
    message = f"the plugin failed to dump its state: {kind}"
    assert page["plugins"]["bad"]["message"] == message
    assert page["plugins"]["good"]["state"] == {"x": 1}
    assert [line["plugin"] for line in lines] == ["bad"]


def test_a_state_is_bounded() -> None:
    page = page_of(Dumping("p", {"all": list(range(10**5)), "text": "x" * 10**6}))
    state = page["plugins"]["p"]["state"]
    assert len(state["all"]) <= MAX_VALUES
    assert state["all"][-1].startswith("…+")


def test_the_prefix_cache_shows_sizes_and_hashes() -> None:
    index = PrefixIndex()
    index.add("ns/a", [1, 2, 3], 100)
    index.add("ns/b", [1, 2], 100)
    index.add("ns/b", [9], 100)
    plugin = ApproxPrefixCacheProducer("prefixes", PrefixParams())
    plugin.index = index
    state = page_of(plugin)["plugins"]["prefixes"]["state"]
    assert (state["entries"], state["endpoints"], state["hashes"]) == (6, 2, 4)
    assert state["blocks_by_endpoint"] == {"ns/a": 3, "ns/b": 3}
    assert state["endpoints_by_first_block"] == {f"{1:016x}": 2, f"{9:016x}": 1}


def test_the_load_in_flight_shows_the_busiest_endpoints_and_returns_to_nothing() -> None:
    plugin = InflightLoadProducer("load", LoadParams())
    idle, busy = make_endpoint("ns/idle"), make_endpoint("ns/busy")
    for endpoint in (idle, busy):
        plugin.endpoint_added(endpoint)
    request, state = make_request("r"), CycleState()
    chosen = [ScoredEndpoint(busy, 1.0)]
    result = SchedulingResult({"default": ProfileResult("default", chosen, chosen)}, "default")
    plugin.attach(request, [idle, busy], state)
    plugin.pre_request(request, result, state)
    dumped = page_of(plugin)["plugins"]["load"]["state"]
    assert (dumped["endpoints"], dumped["requests"]) == (2, 1)
    assert dumped["busiest"]["ns/busy"]["requests"] == 1
    plugin.response_complete(request, busy, EndCause.COMPLETED, state)
    assert page_of(plugin)["plugins"]["load"]["state"]["requests"] == 0


def test_the_order_of_cold_requests_is_shown() -> None:
    plugin = NoHitLruScorer("lru", LruParams())
    for name in ("ns/a", "ns/b", "ns/a"):
        plugin._use(make_endpoint(name))
    state = page_of(plugin)["plugins"]["lru"]["state"]
    assert state == {"used_oldest_first": ["ns/b", "ns/a"]}


def test_sessions_are_counted_not_named() -> None:
    bindings = SessionBindings(ttl_seconds=10, sweep_seconds=10, clock=lambda: 0.0)
    for session, endpoint in (("s1", "ns/a"), ("s2", "ns/a"), ("s3", "ns/b")):
        bindings.bind(session, endpoint)
    assert bindings.dump_state() == {
        "bindings": 3,
        "limit": 65_536,
        "bindings_by_endpoint": {"ns/a": 2, "ns/b": 1},
    }


def test_session_plugins_are_listed_too_whatever_their_names() -> None:
    page: Any = plugin_states({"a": Dumping("a")}, [SessionDumping()])
    assert page["plugins"]["a"]["message"] == "plugin does not support state collection"
    assert page["plugins"]["session-plugin/a"] == {
        "name": "a",
        "type": "session-plugin",
        "state": {"jobs": 2},
    }
