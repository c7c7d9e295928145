"""Back-off delays are bounded and random, so that a hundred clients do not return at once."""

import random

import pytest

from epp.kubernetes.api import ApiError, KubernetesApiError, UnreachableError
from epp.kubernetes.api.backoff import Backoff
from epp.kubernetes.api.resource import ApiCall

from .fake_api import PODS

CALL = ApiCall(verb="list", resource=PODS, namespace="d")


def make_refusal(retry_after_seconds: float | None = None) -> ApiError:
    return ApiError(500, "", "", CALL, retry_after_seconds=retry_after_seconds)


def test_waits_double_up_to_half_a_minute() -> None:
    waits: list[list[float]] = []
    for seed in range(200):
        backoff = Backoff(random.Random(seed))
        waits.append([backoff.next_seconds(make_refusal()) for _ in range(8)])
    for number, longest in enumerate((1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30)):
        nth = [each[number] for each in waits]
        assert longest / 2 <= min(nth) < 0.55 * longest
        assert 0.95 * longest < max(nth) <= longest


def test_an_unreachable_server_costs_no_patience() -> None:
    backoff = Backoff(random.Random(1))
    unreachable = UnreachableError("refused")
    assert all(0.8 <= backoff.next_seconds(unreachable) <= 1.6 for _ in range(20))
    assert backoff.next_seconds(make_refusal()) <= 1.6  # the first failure that counts


def test_what_a_relay_passes_on_costs_no_patience_either() -> None:
    backoff = Backoff(random.Random(1))
    relayed = make_refusal()
    relayed.is_relayed = True
    assert all(0.8 <= backoff.next_seconds(relayed) <= 1.6 for _ in range(20))


@pytest.mark.parametrize(
    ("error", "shortest", "longest"),
    [
        (None, 0.8, 1.6),
        (make_refusal(10), 10, 10),
        (make_refusal(0.1), 0.8, 1.6),
        (make_refusal(86_400), 30, 30),
    ],
    ids=["no error", "the server's wish", "too short a wish", "too long a wish"],
)
def test_the_first_wait(error: KubernetesApiError | None, shortest: float, longest: float) -> None:
    assert shortest <= Backoff(random.Random(2)).next_seconds(error) <= longest


def test_a_success_ends_the_doubling() -> None:
    backoff = Backoff(random.Random(3))
    for _ in range(8):
        backoff.next_seconds(make_refusal())
    backoff.reset()
    assert backoff.next_seconds(make_refusal()) <= 1.6
