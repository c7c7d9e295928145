"""Predictions are used while they are better than a constant."""

from math import log

import pytest

from epp_plugins.predicted_time import Constants
from epp_plugins.predicted_time.mode import logarithm
from epp_plugins.predicted_time.trust import Trust

TIMES = (0.1, 0.4, 1.6)


def learn(trust: Trust, factor: float, requests: int) -> list[bool]:
    """Let it learn from predictions that are ``factor`` times the truth; return the changes."""
    changes = []
    for number in range(requests):
        took = TIMES[number % len(TIMES)]
        if trust.learn(logarithm(took), logarithm(factor * took)):
            changes.append(trust.is_given)
    return changes


def test_predictions_are_not_used_before_there_are_enough() -> None:
    trust = Trust(Constants(trust_samples=16))
    assert learn(trust, 1.0, 15) == []
    assert not trust.is_given
    assert trust.ratio is None
    assert learn(trust, 1.0, 1) == [True]
    assert trust.ratio == pytest.approx(0.0, abs=0.01)


def test_bad_predictions_cease_to_be_used_until_they_are_good_again() -> None:
    trust = Trust(Constants(trust_samples=16))
    learn(trust, 1.0, 50)
    # The constant is wrong by a factor of 4 for two of three requests; the prediction now by 10.
    assert learn(trust, 10.0, 100) == [False]
    assert trust.error == pytest.approx(log(10), rel=0.15)
    assert learn(trust, 1.1, 200) == [True]


def test_equal_requests_need_no_better_prediction_than_the_constant() -> None:
    trust = Trust(Constants(trust_samples=16))
    for _ in range(100):
        trust.learn(logarithm(0.2), logarithm(0.21))
    assert trust.constant_error < 0.01 < trust.error
    assert trust.is_given
    assert trust.constant_seconds == pytest.approx(0.2, rel=0.01)


def test_a_queue_that_all_requests_share_ends_no_trust() -> None:
    trust = Trust(Constants(trust_samples=16))
    learn(trust, 1.0, 50)
    # In overload: the constant is wrong by a factor of 1.12 at most, the predictions by 1.2.
    for number in range(300):
        took = 4.0 + number % 2
        assert not trust.learn(logarithm(took), logarithm(took / 1.2))
    assert trust.ratio is not None
    assert 1.5 < trust.ratio < 1.8
    # Predictions that are wrong by a factor of 1.3 cease to be used.
    changes = [
        trust.learn(logarithm(4.0 + n % 2), logarithm((4.0 + n % 2) / 1.3)) for n in range(300)
    ]
    assert changes.count(True) == 1
    assert not trust.is_given


def test_none_are_needed_where_trust_is_given_from_the_start() -> None:
    assert Trust(Constants(trust_samples=0)).is_given
