"""Distributions of lengths, and the requests that draw from them."""

import json
from collections.abc import Callable
from random import Random
from statistics import median

import pytest

from epp.lab.load import LoadPlan, PlanError
from epp.lab.load.plan import MIN_UNIQUE_CHARS
from epp.lab.load.prompts import Prompts
from epp.lab.traffic import Lengths, LogNormalLengths, TrafficError, UniformLengths
from epp.lab.traffic.lengths import parse_lengths

MakePlan = Callable[..., LoadPlan]


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("512", 512),
        ("100-2000", UniformLengths(100, 2000)),
        ("7-7", UniformLengths(7, 7)),
        ("lognormal:500:8000", LogNormalLengths(500, 8000)),
    ],
)
def test_lengths_are_read_as_they_are_written(text: str, lengths: int | Lengths) -> None:
    assert parse_lengths(text) == lengths
    assert str(lengths) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "'x' is not a length: give a number, a range such as 100-2000"),
        ("1.5", "'1.5' is not a length"),
        ("\u00b2", "is not a length"),
        ("lognormal:5", "'lognormal:5' is not a length"),
        ("20-10", "20-10: must be an ascending range"),
        ("0-10", "0-10: must be an ascending range"),
        ("lognormal:20:10", "lognormal:20:10: the median"),
        ("lognormal:0:10", "the median must be above 0"),
    ],
)
def test_what_is_no_length_is_refused(text: str, message: str) -> None:
    with pytest.raises(TrafficError, match=message):
        parse_lengths(text)


@pytest.mark.parametrize(
    ("lengths", "fraction", "length"),
    [
        pytest.param(UniformLengths(10, 19), 0.0, 10, id="the least"),
        pytest.param(UniformLengths(10, 19), 0.55, 15, id="the sixth of ten"),
        pytest.param(UniformLengths(10, 19), 1 - 2**-53, 19, id="the most"),
        pytest.param(LogNormalLengths(500, 8000), 0.5, 500, id="the median"),
        pytest.param(LogNormalLengths(500, 8000), 0.99, 8000, id="the p99"),
        # Symmetric in the logarithm: 500 / (8000 / 500) = 31.25.
        pytest.param(LogNormalLengths(500, 8000), 0.01, 31, id="the p1"),
        pytest.param(LogNormalLengths(2, 1000), 0.0, 1, id="never below 1"),
        pytest.param(LogNormalLengths(9, 9), 0.9, 9, id="no spread"),
    ],
)
def test_a_fraction_has_its_length(lengths: Lengths, fraction: float, length: int) -> None:
    assert lengths.at(fraction) == length


def test_requests_draw_their_lengths_from_the_plan(make_plan: MakePlan) -> None:
    plan = make_plan(prompt_chars=UniformLengths(100, 200), max_tokens=LogNormalLengths(40, 400))
    prompts, again = Prompts(plan, Random(1)), Prompts(plan, Random(1))
    bodies = [json.loads(prompts.body(index)) for index in range(1000)]
    chars = [len(body["prompt"]) for body in bodies]
    tokens = [body["max_tokens"] for body in bodies]
    assert (min(chars), max(chars)) == (100, 200)
    assert median(chars) == pytest.approx(150, abs=5)
    assert median(tokens) == pytest.approx(40, rel=0.1)
    assert 300 < sorted(tokens)[990] < 550
    assert json.loads(again.body(999)) == bodies[999]


def test_a_fixed_length_draws_nothing(make_plan: MakePlan) -> None:
    fixed = Prompts(make_plan(prompt_chars=100), Random(1))
    range_of_one = Prompts(make_plan(prompt_chars=UniformLengths(100, 100)), Random(1))
    assert fixed.body(3) == range_of_one.body(3)


def test_a_prompt_drawn_too_short_keeps_room_for_its_number(make_plan: MakePlan) -> None:
    plan = make_plan(prompt_chars=LogNormalLengths(60, 6000), prefixes=1, prefix_chars=40)
    prompts = Prompts(plan, Random(1))
    lengths = [len(prompts.prompt(index)) for index in range(300)]
    assert min(lengths) == 40 + MIN_UNIQUE_CHARS


@pytest.mark.parametrize("lengths", [UniformLengths(50, 1000), LogNormalLengths(50, 1000)], ids=str)
def test_lengths_must_leave_room_for_the_prefix(lengths: Lengths, make_plan: MakePlan) -> None:
    with pytest.raises(PlanError, match="prompt_chars: 50 leaves fewer than 16"):
        make_plan(prompt_chars=lengths, prefixes=2, prefix_chars=40)
