"""Gauges of flow control, read at each scrape."""

from prometheus_client import CollectorRegistry

from epp.flow_control.flows import Band
from epp.observability import FlowCollector, FlowState

from .flow_harness import State, kinds, make_band, samples

POOL = {"inference_pool": "pool"}


def watched(state: FlowState | None) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(FlowCollector("pool", lambda: state))
    return registry


def two_bands() -> State:
    high, low = make_band(10, max_requests=200, max_bytes=1000), make_band(-1)
    high.waiting, high.size_bytes = 50, 100
    low.waiting, low.size_bytes = 20, 900
    return State({10: high, -1: low})


def test_the_depth_is_what_waits_in_all_bands() -> None:
    assert samples(watched(two_bands()), "flow_control_queue_depth") == [(POOL, 70)]


def test_the_depth_is_there_at_0_before_anything_else() -> None:
    registry = watched(State())
    assert samples(registry, "flow_control_queue_depth") == [(POOL, 0)]
    assert list(kinds(registry)) == ["flow_control_queue_depth"]


def test_the_depth_is_0_while_flow_control_is_off() -> None:
    assert samples(watched(None), "flow_control_queue_depth") == [(POOL, 0)]


def test_bands_tell_how_full_they_are() -> None:
    registry = watched(two_bands())
    name = "flow_control_capacity_utilization"
    assert samples(registry, f"{name}_requests") == [
        ({"priority": "10"} | POOL, 0.25),  # 50 / 200
        ({"priority": "-1"} | POOL, 0.2),  # 20 / 100
    ]
    assert samples(registry, f"{name}_bytes") == [
        ({"priority": "10"} | POOL, 0.1),  # 100 / 1000
        ({"priority": "-1"} | POOL, 0.9),  # 900 / 1000
    ]


def test_a_band_that_is_gone_is_off_the_page() -> None:
    state = two_bands()
    registry = watched(state)
    del state.by_priority[-1]
    found = samples(registry, "flow_control_capacity_utilization_requests")
    assert [labels["priority"] for labels, _ in found] == ["10"]


def test_a_band_may_come_in_the_middle_of_a_scrape() -> None:
    state = two_bands()

    class Growing(Band):
        """Read by the scraping thread while the event loop adds another band."""

        @property
        def waiting(self) -> int:
            state.by_priority.setdefault(7, make_band(7))
            return 5

        @waiting.setter
        def waiting(self, value: int) -> None:
            assert value == 0

    state.by_priority[10] = Growing(10, max_requests=10, max_bytes=10, created=0.0)
    registry = watched(state)
    name = "flow_control_queue_depth"
    assert samples(registry, name) == samples(registry, name) == [(POOL, 25)]


def test_global_utilization_is_there_for_the_limits_that_are_set() -> None:
    state = two_bands()
    state.max_requests, state.max_bytes = 140, None
    registry = watched(state)
    name = "flow_control_global_capacity_utilization"
    assert samples(registry, f"{name}_requests") == [(POOL, 0.5)]  # 70 / 140
    assert samples(registry, f"{name}_bytes") == []
    state.max_requests, state.max_bytes = 0, 4000
    assert samples(registry, f"{name}_requests") == []
    assert samples(registry, f"{name}_bytes") == [(POOL, 0.25)]  # 1000 / 4000


def test_saturation_is_reported_by_stage_and_not_clamped() -> None:
    state = State(full={"prefill": 0.5, "decode": 1.75, "effective": 1.75})
    assert samples(watched(state), "flow_control_pool_saturation") == [
        (POOL | {"stage": "prefill"}, 0.5),
        (POOL | {"stage": "decode"}, 1.75),
        (POOL | {"stage": "effective"}, 1.75),
    ]


def test_stale_endpoints_are_reported_by_detector() -> None:
    state = State(stale={"utilization-detector": 3})
    assert samples(watched(state), "flow_control_stale_endpoints") == [
        ({"detector": "utilization-detector"}, 3)
    ]


def test_all_of_them_are_gauges() -> None:
    state = two_bands()
    state.max_requests, state.max_bytes = 100, 100
    state.full, state.stale = {"effective": 1.0}, {"detector": 1}
    assert kinds(watched(state)) == dict.fromkeys(
        [
            "flow_control_queue_depth",
            "flow_control_capacity_utilization_requests",
            "flow_control_capacity_utilization_bytes",
            "flow_control_global_capacity_utilization_requests",
            "flow_control_global_capacity_utilization_bytes",
            "flow_control_pool_saturation",
            "flow_control_stale_endpoints",
        ],
        "gauge",
    )
