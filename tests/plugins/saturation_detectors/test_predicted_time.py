"""``predicted-time-detector``: the share of endpoints without room."""

import pytest

from epp.scheduling import Endpoint
from epp.testing import check, make_endpoint, make_plugin
from epp_plugins.data_producers.predicted_time import PredictedTimeProducer
from epp_plugins.saturation_detectors.predicted_time import PredictedTimeDetector


def made(
    trust_samples: int = 0, *, is_known: bool = True
) -> tuple[PredictedTimeDetector, PredictedTimeProducer, list[Endpoint]]:
    """Return a detector, the producer with 0.1 s per 1000 tokens, and a pool of four."""
    constants = {
        "priorBaseSeconds": 0.0, "priorUnitSeconds": 0.1, "trustSamples": trust_samples
    }  # fmt: skip
    producer = make_plugin(PredictedTimeProducer, {"constants": constants}, clock=lambda: 0.0)
    pool = [make_endpoint(name) for name in ("a", "b", "c", "d")]
    if is_known:
        for endpoint in pool:
            producer.endpoint_added(endpoint)
    parameters = {"predictedTimeProducerName": producer.name}
    return make_plugin(PredictedTimeDetector, parameters, clock=lambda: 0.0), producer, pool


def test_the_class_is_sound() -> None:
    check(PredictedTimeDetector)


@pytest.mark.parametrize("busy", range(5))
def test_the_saturation_is_the_share_of_endpoints_without_room(busy: int) -> None:
    detector, producer, pool = made()
    for endpoint in pool[:busy]:
        producer.model.sent(endpoint.name, 2000.0, 0.0)  # 0.2 s; there is room up to 0.15 s
    assert detector.saturation(pool) == busy / 4


def test_requests_need_not_wait_while_predictions_are_not_trusted() -> None:
    detector, producer, pool = made(trust_samples=16)
    producer.model.sent("a", 90_000.0, 0.0)
    assert detector.saturation(pool) == 0.0


def test_a_pool_that_no_producer_knows_is_not_full() -> None:
    detector, _, pool = made(is_known=False)
    assert detector.saturation(pool) == 0.0


def test_an_empty_pool_is_full() -> None:
    detector, _, _ = made()
    assert detector.saturation([]) == 1.0


def excluded(producer: PredictedTimeProducer, *names: str) -> None:
    """Let a request fail at each endpoint, before its first token."""
    for name in names:
        producer.model.failed(producer.model.sent(name, 1000.0, 0.0), 0.0)


@pytest.mark.parametrize("is_serial", [True, False], ids=["serial", "slots"])
def test_a_pool_of_which_all_are_excluded_is_not_full(is_serial: bool) -> None:
    detector, producer, pool = made()
    producer.model.learner.mode.is_serial = is_serial
    excluded(producer, "a", "b", "c")
    assert detector.saturation(pool) == 0.75
    excluded(producer, "d")
    assert detector.saturation(pool) == 0.0  # waiting would not help


def test_a_pool_is_full_if_those_that_are_not_excluded_have_no_room() -> None:
    detector, producer, pool = made()
    excluded(producer, "a", "b", "c")
    producer.model.sent("d", 2000.0, 0.0)
    assert detector.saturation(pool) == 1.0
