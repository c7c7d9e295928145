"""The lower bound is below every policy, for every request."""

import pytest
from lab.simulation.simulated import outcome, scenario

from epp.lab.fleet import EngineConfig
from epp.lab.simulation.lower_bound import seconds_alone
from epp.lab.simulation.routing import Tokens

TRAFFIC = {
    "generator": "shared-prefix",
    "groups": 10,
    "system_tokens": 1000,
    "question_tokens": 64,
    "output_tokens": 30,
    "arrivals": {"rate": 30},
    "limit": 150,
}


@pytest.mark.parametrize("policy", ["random", "reference-weighted", "oracle-holding"])
def test_no_request_is_faster_than_the_bound(policy: str) -> None:
    given = scenario(TRAFFIC)
    bounds = outcome(given, "lower-bound").records
    for bound, record in zip(bounds, outcome(given, policy).records, strict=True):
        assert bound.ttft_seconds is not None
        assert record.ttft_seconds is not None
        assert bound.ttft_seconds <= record.ttft_seconds + 1e-9
        assert bound.latency_seconds <= record.latency_seconds + 1e-9
        assert bound.cached_tokens >= record.cached_tokens


def test_a_single_request_takes_exactly_as_long_as_the_bound() -> None:
    given = scenario(TRAFFIC | {"limit": 1}, workers=1)
    (bound,), (record,) = (outcome(given, name).records for name in ("lower-bound", "random"))
    assert record.ttft_seconds == pytest.approx(bound.ttft_seconds)
    assert record.latency_seconds == pytest.approx(bound.latency_seconds)


def test_the_time_alone_is_that_of_the_formula() -> None:
    config = EngineConfig(
        step_seconds=0.01,
        decode_seconds_per_sequence=0.001,
        prefill_tokens_per_second=1000,
        max_num_batched_tokens=512,
    )
    # Two chunks: 2 steps and 600 tokens; then 9 steps of 11 ms.
    first, whole = seconds_alone(config, Tokens(prompt=1000, output=10, cached=400))
    assert first == pytest.approx(0.02 + 0.6)
    assert whole == pytest.approx(first + 9 * 0.011)
