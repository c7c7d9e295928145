"""Prompts and arrival times follow from the seed alone."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random

import msgspec
import pytest

from epp.lab.load import LoadPlan
from epp.lab.load.prompts import Prompts, arrival_offsets

MakePlan = Callable[..., LoadPlan]


def test_the_same_seed_gives_the_same_bodies_in_any_order(make_plan: MakePlan) -> None:
    plan = make_plan(prefixes=3, prefix_chars=40, abort_share=0.5)
    first, second = Prompts(plan, Random(7)), Prompts(plan, Random(7))
    forwards = [(first.body(i), first.leaves_early(i)) for i in range(50)]
    backwards = [(second.body(i), second.leaves_early(i)) for i in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert Prompts(plan, Random(8)).body(0) != forwards[0][0]


def test_distinct_prompts_differ_from_the_first_characters(make_plan: MakePlan) -> None:
    prompts = Prompts(make_plan(prompt_chars=200), Random(0))
    texts = [prompts.prompt(i) for i in range(500)]
    assert {len(text) for text in texts} == {200}
    assert len({text[:16] for text in texts}) == 500


def test_a_group_shares_exactly_its_prefix(make_plan: MakePlan) -> None:
    plan = make_plan(prompt_chars=100, prefixes=4, prefix_chars=64)
    prompts = Prompts(plan, Random(0))
    texts = [prompts.prompt(i) for i in range(400)]
    groups = Counter(text[:64] for text in texts)
    assert len(groups) == 4
    assert min(groups.values()) > 60  # 100 expected, standard deviation 8.7
    assert len({text[64:] for text in texts}) == 400
    assert {len(text) for text in texts} == {100}


def test_a_prompt_may_be_longer_than_the_corpus(make_plan: MakePlan) -> None:
    assert len(Prompts(make_plan(prompt_chars=200_000), Random(0)).prompt(3)) == 200_000


def test_bodies_have_the_shape_of_their_api(make_plan: MakePlan) -> None:
    chat = Prompts(make_plan(api="chat", max_tokens=9), Random(0))
    assert msgspec.json.decode(chat.body(0)) == {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": chat.prompt(0)}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    plain = Prompts(make_plan(stream=False), Random(0))
    assert msgspec.json.decode(plain.body(1)) == {
        "model": "m",
        "max_tokens": 64,
        "prompt": plain.prompt(1),
    }


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_share_of_early_leavers_is_met(make_plan: MakePlan, share: float) -> None:
    prompts = Prompts(make_plan(abort_share=share), Random(0))
    leaving = sum(prompts.leaves_early(i) for i in range(4000))
    assert leaving / 4000 == pytest.approx(share, abs=0.03)


def test_constant_arrivals_are_evenly_spaced_from_zero(make_plan: MakePlan) -> None:
    plan = make_plan(rate=4.0, arrivals="constant", requests=5)
    assert list(arrival_offsets(plan, Random(0))) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_duration_ends_arrivals_before_it(make_plan: MakePlan) -> None:
    plan = make_plan(rate=4.0, arrivals="constant", duration_seconds=1.0)
    assert list(arrival_offsets(plan, Random(0))) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_arrivals_repeat_by_seed_and_have_the_mean_gap(make_plan: MakePlan) -> None:
    plan = make_plan(rate=50.0, requests=5000)
    offsets = list(arrival_offsets(plan, Random(3)))
    assert offsets == list(arrival_offsets(plan, Random(3)))
    assert offsets != list(arrival_offsets(plan, Random(4)))
    assert all(earlier <= later for earlier, later in pairwise(offsets))
    assert offsets[-1] / 5000 == pytest.approx(1 / 50, rel=0.05)


def test_a_closed_loop_has_no_arrival_times(make_plan: MakePlan) -> None:
    with pytest.raises(ValueError, match="without a rate"):
        list(arrival_offsets(make_plan(), Random(0)))
