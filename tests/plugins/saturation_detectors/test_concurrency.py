from typing import Any

import msgspec
import pytest

from epp.scheduling import AttributeKey, Endpoint, SchedulingError
from epp.testing import check, make_endpoint, make_profile, make_request, run_filter, run_profile
from epp_plugins.saturation_detectors.concurrency import ConcurrencyDetector, Params
from epp_plugins.state_keys import IN_FLIGHT_LOAD, InFlightLoad

SMALL = {"maxConcurrency": 10, "maxTokenConcurrency": 1000}


def made(parameters: dict[str, Any] | None = None) -> ConcurrencyDetector:
    return ConcurrencyDetector("detector", msgspec.convert(parameters or {}, Params))


def pool(
    *loads: tuple[int, int] | None, key: AttributeKey[InFlightLoad] = IN_FLIGHT_LOAD
) -> list[Endpoint]:
    """Return endpoints a, b, ... with these requests and tokens in flight; None: never counted."""
    return [
        make_endpoint(name, attributes={} if load is None else {key: InFlightLoad(*load)})
        for name, load in zip("abcdef", loads, strict=False)
    ]


def test_the_class_is_sound() -> None:
    check(ConcurrencyDetector)


@pytest.mark.parametrize(
    ("mode", "loads", "expected"),
    [
        pytest.param("requests", (), 1.0, id="no endpoint: full"),
        pytest.param("hybrid", (), 1.0, id="no endpoint: full in hybrid mode"),
        pytest.param("requests", (None, None), 0.0, id="nothing was ever sent"),
        pytest.param("requests", ((4, 5000), (8, 0)), 0.6, id="requests"),  # 12 / 20
        pytest.param("tokens", ((40, 500), (8, 100)), 0.3, id="tokens"),  # 600 / 2000
        pytest.param(
            # (max(4/10, 900/1000) + max(8/10, 100/1000)) / 2
            "hybrid",
            ((4, 900), (8, 100)),
            0.85,
            id="hybrid: each by the fuller of the two",
        ),
        pytest.param("requests", ((30, 0), None), 1.5, id="beyond full"),  # 30 / 20
    ],
)
def test_saturation(mode: str, loads: tuple[tuple[int, int] | None, ...], expected: float) -> None:
    detector = made({**SMALL, "concurrencyMode": mode})
    assert detector.saturation(pool(*loads)) == pytest.approx(expected)


def test_the_defaults_are_a_hundred_requests() -> None:
    assert made().saturation(pool((50, 10**9))) == 0.5
    assert made({"concurrencyMode": "tokens"}).saturation(pool((0, 250_000))) == 0.25


@pytest.mark.parametrize(
    ("parameters", "loads", "kept"),
    [
        pytest.param({}, ((9, 5000), (10, 0)), ["a"], id="requests at the limit are too many"),
        pytest.param(
            {"concurrencyMode": "tokens"},
            ((50, 999), (1, 1000)),
            ["a"],
            id="tokens at the limit are too many",
        ),
        pytest.param(
            {"concurrencyMode": "hybrid"},
            ((9, 999), (10, 0), (0, 1000)),
            ["a"],
            id="hybrid: neither may be too many",
        ),
        # 10 * 1.25 = 12.5, rounded down
        pytest.param({"headroom": 0.25}, ((11, 0), (12, 0)), ["a"], id="headroom, rounded down"),
        pytest.param({"headroom": 1e308}, ((11, 0), (12, 0)), ["a", "b"], id="boundless headroom"),
        pytest.param({}, ((10, 0), (99, 0)), [], id="perhaps none"),
        pytest.param({}, (None,), ["a"], id="nothing was ever sent"),
    ],
)
def test_filter(
    parameters: dict[str, Any], loads: tuple[tuple[int, int] | None, ...], kept: list[str]
) -> None:
    assert run_filter(made(SMALL | parameters), make_request(), pool(*loads)) == kept


def test_the_named_producer_is_believed() -> None:
    mine = AttributeKey[InFlightLoad]("InFlightLoadDataKey/mine")
    detector = made({"inFlightLoadProducerName": "mine", **SMALL})
    assert detector.reads == (mine,)
    assert made().reads == (IN_FLIGHT_LOAD,)
    assert detector.saturation(pool((5, 0), key=mine)) == 0.5
    assert detector.saturation(pool((5, 0))) == 0.0


def test_in_a_profile() -> None:
    profile = make_profile(filters=[made(SMALL)])
    assert run_profile(profile, make_request(), pool((10, 0), (3, 0))) == ["b"]
    with pytest.raises(SchedulingError, match="detector"):
        run_profile(profile, make_request(), pool((10, 0), (11, 0)))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"maxConcurrency": 0}, "`$.maxConcurrency`", id="no requests"),
        pytest.param({"maxTokenConcurrency": 0}, "`$.maxTokenConcurrency`", id="no tokens"),
        pytest.param({"concurrencyMode": "both"}, "`$.concurrencyMode`", id="unknown mode"),
        pytest.param({"headroom": -1.0}, "`$.headroom`", id="less than no headroom"),
        pytest.param({"max": 1}, "unknown field `max`", id="unknown field"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        made(parameters)
    assert message in str(caught.value)
