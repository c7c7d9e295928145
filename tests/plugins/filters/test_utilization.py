from math import nan
from typing import Any

import pytest
from config.graphs import load

from epp.building import make_builder
from epp.scheduling import Endpoint, Plugin
from epp.testing import (
    check,
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins.filters.utilization import UtilizationFilter
from epp_plugins.state_keys import IN_FLIGHT_LOAD, InFlightLoad, in_flight_load_of

OWN = in_flight_load_of("mine")


def sent(requests: int, **page: Any) -> Endpoint:
    return make_endpoint(
        f"{requests} sent", attributes={IN_FLIGHT_LOAD: InFlightLoad(requests)}, **page
    )


def limits(*conditions: tuple[str, float], **parameters: Any) -> UtilizationFilter:
    listed = [{"metric": metric, "maxValue": most} for metric, most in conditions]
    return make_plugin(UtilizationFilter, {"conditions": listed, **parameters})


ACTIVE, RUNNING, WAITING, CACHE = (
    "active-requests",
    "running-requests",
    "waiting-queue",
    "kv-cache-utilization",
)


@pytest.mark.parametrize(
    ("plugin", "endpoints", "want"),
    [
        pytest.param(
            limits((ACTIVE, 2)),
            [sent(1), sent(2), sent(3)],
            ["1 sent", "2 sent"],
            id="active requests at the limit pass",
        ),
        pytest.param(
            limits((ACTIVE, 1)),
            [make_endpoint("none known"), sent(5)],
            ["none known"],
            id="nothing known to be in flight is 0",
        ),
        pytest.param(
            limits((RUNNING, 4)),
            [make_endpoint("4", running_requests=4), make_endpoint("5", running_requests=5)],
            ["4"],
            id="running requests",
        ),
        pytest.param(
            limits((WAITING, 0)),
            [make_endpoint("0"), make_endpoint("3", waiting_requests=3)],
            ["0"],
            id="an empty queue passes a limit of 0",
        ),
        # No free slot is known, so the one sent since the page waits there: 0 + 1.
        pytest.param(
            limits((WAITING, 0)),
            [make_endpoint("sent to", in_flight=1), make_endpoint("idle")],
            ["idle"],
            id="what was sent since the page counts",
        ),
        pytest.param(
            limits((CACHE, 0.8)),
            [
                make_endpoint("half", kv_cache_usage=0.5),
                make_endpoint("limit", kv_cache_usage=0.8),
                make_endpoint("full", kv_cache_usage=0.9),
                make_endpoint("no number", kv_cache_usage=nan),
            ],
            ["half", "limit"],
            id="cache usage; what is no number is a full cache",
        ),
        pytest.param(
            limits((WAITING, 0)),
            [make_endpoint("1", waiting_requests=1), sent(0)],
            ["0 sent"],
            id="never scraped is an empty queue",
        ),
        pytest.param(
            limits((RUNNING, 40), (WAITING, 0)),
            [
                make_endpoint("both hold", running_requests=10),
                make_endpoint("busy", running_requests=41),
                make_endpoint("queue", running_requests=10, waiting_requests=1),
            ],
            ["both hold"],
            id="all conditions must hold",
        ),
        pytest.param(
            limits((ACTIVE, 10), (CACHE, 0.8)),
            [sent(5), sent(11), make_endpoint("full", kv_cache_usage=0.9)],
            ["5 sent"],
            id="own count and server's metric together",
        ),
        pytest.param(
            limits((WAITING, 4), (WAITING, 2)),
            [make_endpoint("2", waiting_requests=2), make_endpoint("3", waiting_requests=3)],
            ["2"],
            id="the lower of two limits of one metric",
        ),
        pytest.param(limits((ACTIVE, 1)), [sent(2), sent(3)], [], id="none is left"),
        pytest.param(
            limits((ACTIVE, 1), fallbackOnEmpty=True),
            [sent(2), sent(3)],
            ["2 sent", "3 sent"],
            id="all, where none would be left",
        ),
        pytest.param(
            limits((ACTIVE, 2), fallbackOnEmpty=True),
            [sent(2), sent(3)],
            ["2 sent"],
            id="no falling back while one is left",
        ),
        pytest.param(
            limits((ACTIVE, 0), inFlightLoadProducerName="mine"),
            [sent(9), make_endpoint("own", attributes={OWN: InFlightLoad(1)})],
            ["9 sent"],
            id="only the named producer's count",
        ),
    ],
)
def test_filter(plugin: UtilizationFilter, endpoints: list[Endpoint], want: list[str]) -> None:
    assert run_filter(plugin, make_request(), endpoints) == want
    assert run_filter(plugin, make_request(), []) == []


@pytest.mark.parametrize(
    ("plugin", "want"),
    [
        pytest.param(limits((WAITING, 0), (ACTIVE, 1)), (IN_FLIGHT_LOAD,), id="active requests"),
        pytest.param(
            limits((ACTIVE, 1), inFlightLoadProducerName="mine"), (OWN,), id="producer of a name"
        ),
        pytest.param(
            limits((WAITING, 0), (RUNNING, 1), (CACHE, 1), inFlightLoadProducerName="mine"),
            (),
            id="none for the servers' metrics",
        ),
    ],
)
def test_producer_is_needed_for_active_requests_alone(
    plugin: UtilizationFilter, want: tuple[Any, ...]
) -> None:
    check(UtilizationFilter)
    assert plugin.reads == want


@pytest.mark.parametrize(
    ("metric", "producers"),
    [(ACTIVE, 1), (RUNNING, 0), (WAITING, 0), (CACHE, 0)],
)
def test_a_configuration_gets_the_producer_that_it_needs(metric: str, producers: int) -> None:
    graph = make_builder(0).build(
        load(
            "plugins: [{type: utilization-filter, parameters: {conditions:"
            f" [{{metric: {metric}, maxValue: 1}}]}}}}]\n"
        )
    )
    writing = [each for each in graph.plugins.values() if IN_FLIGHT_LOAD in _writes(each)]
    assert len(writing) == producers


def _writes(plugin: Plugin) -> tuple[Any, ...]:
    keys: tuple[Any, ...] = getattr(plugin, "writes", ())
    return keys


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({}, "missing required field `conditions`", id="no conditions"),
        pytest.param({"conditions": []}, r"length >= 1 - at `\$\.conditions`", id="none of them"),
        pytest.param(
            {"conditions": [{"metric": "heat", "maxValue": 1}]},
            r"Invalid enum value 'heat' - at `\$\.conditions\[0\]\.metric`",
            id="unknown metric",
        ),
        pytest.param(
            {"conditions": [{"metric": WAITING}]},
            r"missing required field `maxValue` - at `\$\.conditions\[0\]`",
            id="no limit",
        ),
        pytest.param(
            {"conditions": [{"metric": WAITING, "maxValue": -1}]},
            r">= 0.0 - at `\$\.conditions\[0\]\.maxValue`",
            id="negative limit",
        ),
        pytest.param(
            {"conditions": [{"metric": CACHE, "maxValue": 80}]},
            r"kv-cache-utilization is a fraction, at most 1\.0, got 80\.0 - at"
            r" `\$\.conditions\[0\]`",
            id="a percentage",
        ),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plugin(UtilizationFilter, parameters)


def test_a_profile_picks_below_the_limit() -> None:
    profile = make_profile(filters=[limits((ACTIVE, 1))])
    assert run_profile(profile, make_request(), [sent(2), sent(1)]) == ["1 sent"]
