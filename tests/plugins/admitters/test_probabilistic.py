import random
from math import inf
from typing import Any

import msgspec
import pytest

from epp.request_control.plugins import AdmissionDeniedError
from epp.scheduling import CycleState, Endpoint
from epp.testing import check, make_endpoint, make_request
from epp_plugins.admitters.probabilistic import Params, ProbabilisticAdmitter


def made(parameters: dict[str, Any] | None = None, seed: int = 1) -> ProbabilisticAdmitter:
    params = msgspec.convert(parameters or {}, Params)
    return ProbabilisticAdmitter("admitter", params, rng=random.Random(seed))


def denied(
    admitter: ProbabilisticAdmitter, *endpoints: Endpoint, priority: int = -1, times: int = 1000
) -> int:
    """Return how many of so many requests are turned away."""
    count = 0
    for _ in range(times):
        try:
            admitter.admit(make_request(priority=priority), endpoints, CycleState())
        except AdmissionDeniedError:
            count += 1
    return count


def test_the_class_is_sound() -> None:
    check(ProbabilisticAdmitter)


@pytest.mark.parametrize(
    ("waiting", "kv_cache_usage", "parameters", "share"),
    [
        pytest.param(0, 0.0, {}, 0.0, id="idle: nobody"),
        pytest.param(1, 0.0, {}, 0.096, id="a fifth full"),  # 0.2**5 * 300
        pytest.param(2, 0.0, {}, 1.0, id="two fifths full: all"),  # 0.4**5 * 300 = 3.07
        pytest.param(0, 0.2, {}, 0.293, id="by the cache"),  # 0.25**5 * 300
        pytest.param(2, 0.0, {"power": 1, "k": 1}, 0.4, id="in proportion"),
        pytest.param(
            # max(2/10, 0.3/0.6)
            2,
            0.3,
            {"power": 1, "k": 1, "queueDepthThreshold": 10, "kvCacheUtilThreshold": 0.6},
            0.5,
            id="other thresholds",
        ),
        pytest.param(10**9, 0.0, {"power": 1000}, 1.0, id="beyond any number"),
        pytest.param(-5, -1.0, {}, 0.0, id="below nothing"),
    ],
)
def test_the_share_of_sheddable_requests_turned_away(
    waiting: int, kv_cache_usage: float, parameters: dict[str, Any], share: float
) -> None:
    endpoint = make_endpoint(waiting_requests=waiting, kv_cache_usage=kv_cache_usage)
    # 1000 draws: three standard deviations are at most 0.047
    assert denied(made(parameters), endpoint) / 1000 == pytest.approx(share, abs=0.047)


def test_the_pool_counts_in_the_mean() -> None:
    # (2/5 + 0) / 2 = 0.2, 0.2**5 * 300 = 0.096
    endpoints = make_endpoint("a", waiting_requests=2), make_endpoint("b")
    assert denied(made(), *endpoints) / 1000 == pytest.approx(0.096, abs=0.03)


@pytest.mark.parametrize("priority", [0, 5])
def test_other_requests_are_always_admitted(priority: int) -> None:
    full = make_endpoint(waiting_requests=100)
    assert denied(made(), full, priority=priority, times=10) == 0


def test_an_idle_pool_turns_nobody_away() -> None:
    # 0**5 * inf is no number
    assert denied(made({"k": inf}), make_endpoint("a"), times=10) == 0


def test_without_endpoints_somebody_else_says_no() -> None:
    assert denied(made(), times=10) == 0


def test_one_seed_one_response() -> None:
    endpoint = make_endpoint(waiting_requests=1)
    assert denied(made(seed=3), endpoint) == denied(made(seed=3), endpoint)


def test_the_response_is_429_and_says_why() -> None:
    full = make_endpoint(waiting_requests=10)
    with pytest.raises(AdmissionDeniedError) as caught:
        made().admit(make_request(priority=-2), (full,), CycleState())
    assert caught.value.status == 429
    assert str(caught.value) == (
        "turned away by 'admitter' with a chance of 1.00: the request's priority is -2 and the"
        " pool's saturation 2.000"
    )


@pytest.mark.parametrize("field", ["queueDepthThreshold", "kvCacheUtilThreshold", "power", "k"])
def test_wrong_parameters_are_refused(field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=rf"`\$\.{field}`"):
        made({field: 0})
