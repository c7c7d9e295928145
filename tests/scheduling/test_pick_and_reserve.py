"""The distribution of requests when each choice is reserved in the same step."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.request_control.plugins import DataProducer
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    Reservation,
    Scheduler,
    SchedulerProfile,
    Scorer,
    WeightedScorer,
)
from epp.testing import make_endpoint, make_request
from epp_plugins.data_producers import approx_prefix_cache, token
from epp_plugins.pickers import max_score
from epp_plugins.profile_handlers import single_profile
from epp_plugins.scorers import kv_cache_utilization, prefix_cache, queue_depth
from epp_plugins.state_keys import PREFIX_MATCHES, PrefixMatches


class Picking:
    """Prepare, schedule and reserve one request, as the director does."""

    def __init__(self, *, prefix: bool, seed: int = 0) -> None:
        scorers: list[tuple[float, Scorer]] = [
            (2, queue_depth.QueueScorer("queue", queue_depth.Params())),
            (2, kv_cache_utilization.KvCacheUtilizationScorer("kv", kv_cache_utilization.Params())),
        ]
        if prefix:
            scorers.append((3, prefix_cache.PrefixCacheScorer("prefix", prefix_cache.Params())))
        picker = max_score.MaxScorePicker("pick", max_score.Params(), rng=random.Random(seed))
        profile = SchedulerProfile(
            name="default", scorers=[WeightedScorer(s, w) for w, s in scorers], picker=picker
        )
        handler = single_profile.SingleProfileHandler("single", single_profile.Params())
        memory = approx_prefix_cache.ApproxPrefixCacheProducer(
            "approx-prefix-cache-producer", approx_prefix_cache.Params()
        )
        self.scheduler = Scheduler(handler, {"default": profile}, post_schedule=[memory])
        self.producers: list[DataProducer] = []
        if prefix:
            self.producers = [token.TokenProducer("token", token.Params()), memory]

    def __call__(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], now: float = 0.0
    ) -> tuple[str, Reservation]:
        state = CycleState()
        for producer in self.producers:
            producer.prepare(request, state)
        for producer in self.producers:
            producer.attach(request, endpoints, state)
        result = self.scheduler.schedule(request, endpoints, state)
        chosen = result.endpoints[0].endpoint
        return chosen.name, Reservation(chosen.load, now)


def spread(names: Sequence[str], endpoints: Sequence[Endpoint]) -> int:
    counts = Counter(names)
    values = [counts[e.name] for e in endpoints]
    return max(values) - min(values)


@given(
    requests=st.integers(1, 80),
    pods=st.integers(1, 12),
    waiting=st.integers(0, 20),
    running=st.integers(0, 20),
    usage=st.floats(0, 1),
    slots=st.just(0) | st.integers(1, 40),
    ended=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
def test_a_burst_between_two_scrapes_spreads_evenly(
    *,
    requests: int,
    pods: int,
    waiting: int,
    running: int,
    usage: float,
    slots: int,
    ended: int,
    seed: int,
) -> None:
    """Also while slots are free, and when requests have ended since the scrape."""
    endpoints = []
    for n in range(pods):
        endpoint = make_endpoint(f"pod-{n}", slots=slots)
        load = endpoint.load
        reservations = [Reservation(load, 0.0) for _ in range(ended)]
        load.observe(
            waiting=waiting, running=running + ended, kv_cache_usage=usage, requested_at=1.0
        )
        for reservation in reservations:
            reservation.release(2.0)
        endpoints.append(endpoint)
    pick = Picking(prefix=False, seed=seed)
    names = [pick(make_request(), endpoints, 3.0)[0] for _ in range(requests)]
    assert spread(names, endpoints) <= 1


def test_prompts_that_share_no_block_spread_under_the_default_profile() -> None:
    endpoints = [make_endpoint(f"pod-{n}") for n in range(6)]
    pick = Picking(prefix=True)
    prompts = [f'"{n} {"distinct " * 200}"'.encode() for n in range(60)]
    names = [pick(make_request(prompt=prompt), endpoints)[0] for prompt in prompts]
    counts = Counter(names)
    assert sorted(counts) == [e.name for e in endpoints]
    assert all(9 <= count <= 11 for count in counts.values())


def test_repeats_go_where_their_prefix_is() -> None:
    """40 prefixes of 2 KB, 25 repeats each in random order, one request at a time."""
    rng = random.Random(0)
    endpoints = [make_endpoint(f"pod-{n}") for n in range(4)]
    pick = Picking(prefix=True)
    prefixes = [rng.randbytes(1024).hex() for _ in range(40)]
    turns = [n for n in range(40) for _ in range(26)]
    rng.shuffle(turns)
    holders: dict[int, str] = {}
    hits = 0
    for turn, n in enumerate(turns):
        prompt = f'"{prefixes[n]} question {turn}"'.encode()
        name, reservation = pick(make_request(prompt=prompt), endpoints, turn)
        reservation.release(turn + 0.5)
        hits += holders.get(n) == name
        holders.setdefault(n, name)
    assert hits >= 0.95 * 40 * 25
    assert len(set(holders.values())) == 4


def test_a_burst_of_one_prefix_sees_itself() -> None:
    """The second request finds the first though neither has ended: a full match stays."""
    endpoints = [make_endpoint(f"pod-{n}") for n in range(4)]
    pick = Picking(prefix=True)
    names = [pick(make_request(prompt=b"x" * 2048), endpoints)[0] for _ in range(10)]
    assert len(set(names)) == 1


@pytest.mark.parametrize(
    ("queues", "held", "stays"),
    [
        # Holder and another. queue-scorer is min-max, so any difference is worth all its weight:
        # the holder has 0 * 2 + 3r, the other 1 * 2. It leaves when 3r < 2.
        pytest.param([0, 0], 1, True, id="equal queues: any match stays"),
        pytest.param([1, 0], 12, True, id="difference 1, r = 1: 3 > 2 stays"),
        pytest.param([1000, 0], 12, True, id="difference 1000, r = 1: stays all the same"),
        pytest.param([1, 0], 9, True, id="difference 1, r = 3/4: 2.25 > 2 stays"),
        pytest.param([1, 0], 8, False, id="difference 1, r = 2/3: 2 = 2, to the less loaded"),
        pytest.param([1, 0], 7, False, id="difference 1, r = 7/12: 1.75 < 2 leaves"),
        pytest.param([1000, 0], 9, True, id="difference 1000, r = 3/4: as at 1"),
        # A third endpoint stretches the range. Queues 1, 0, 4: the holder's score is 3/4, so it
        # has 1.5 + 3r against 2 and leaves when 3r < 2 * 1/4, that is r < 1/6.
        pytest.param([1, 0, 4], 3, True, id="1 of a range of 4, r = 1/4: 2.25 > 2 stays"),
        pytest.param([1, 0, 4], 1, False, id="1 of a range of 4, r = 1/12: 1.75 < 2 leaves"),
    ],
)
def test_when_a_repeat_leaves_its_holder(queues: list[int], held: int, stays: bool) -> None:
    """Queue 2 against prefix 3: leaves when r < 2/3 * (q - min)/(max - min); never if r > 2/3.

    At exactly that share the scores are equal and the fewest requests decide: it leaves.
    """
    endpoints = [make_endpoint(f"pod-{n}", in_flight=q) for n, q in enumerate(queues)]
    state = CycleState()
    state.write(PREFIX_MATCHES, PrefixMatches({"pod-0": held}, total_blocks=12, block_size=64))
    for seed in range(10):
        result = Picking(prefix=True, seed=seed).scheduler.schedule(
            make_request(), endpoints, state
        )
        assert (result.endpoints[0].endpoint.name == "pod-0") is stays


@pytest.mark.parametrize(
    ("usage", "stays"), [(0.45, True), (0.55, False)], ids=["2.9 < 3", "3.1 > 3"]
)
def test_queue_and_cache_together_move_a_full_match(usage: float, stays: bool) -> None:
    """The other has 2 for its queue and 2 * (difference of KV usage): over 1/2 it wins."""
    endpoints = [make_endpoint("pod-0", in_flight=1, kv_cache_usage=usage), make_endpoint("pod-1")]
    state = CycleState()
    state.write(PREFIX_MATCHES, PrefixMatches({"pod-0": 12}, total_blocks=12, block_size=64))
    result = Picking(prefix=True).scheduler.schedule(make_request(), endpoints, state)
    assert (result.endpoints[0].endpoint.name == "pod-0") is stays


def test_the_same_seed_makes_the_same_choices() -> None:
    runs = []
    for _ in range(2):
        endpoints = [make_endpoint(f"pod-{n}") for n in range(5)]
        pick = Picking(prefix=True, seed=42)
        prompts = [f'"{n % 7} {"word " * 100}"'.encode() for n in range(100)]
        runs.append([pick(make_request(prompt=prompt), endpoints)[0] for prompt in prompts])
    assert runs[0] == runs[1]
