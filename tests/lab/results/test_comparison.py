"""Ratios and comparisons, with values computed by hand or taken from printed tables."""

import json
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from epp.lab.results import (
    ComparisonError,
    Ratio,
    RatioVerdict,
    Slo,
    Summary,
    compare,
    comparison_table,
    summarise,
)
from epp.lab.results.student_t import probability_within, two_sided_quantile

from .records import make_record


@pytest.mark.parametrize(
    ("confidence", "degrees", "t"),
    [
        # The usual printed table, two-sided.
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 3, 3.182),
        (0.95, 4, 2.776),
        (0.95, 9, 2.262),
        (0.95, 30, 2.042),
        (0.99, 4, 4.604),
        (0.90, 7, 1.895),
    ],
)
def test_quantiles_match_the_printed_table(confidence: float, degrees: int, t: float) -> None:
    assert two_sided_quantile(confidence, degrees) == pytest.approx(t, abs=5e-4)


@given(t=st.floats(0, 1e6), degrees=st.integers(1, 60))
def test_a_probability_is_one(t: float, degrees: int) -> None:
    assert 0.0 <= probability_within(t, degrees) <= 1.0 + 1e-12


def test_a_ratio_is_the_geometric_mean_with_students_interval() -> None:
    # Logarithms of 2 and 8 in base 2: 1 and 3; mean 2 (ratio 4), standard error 1, t = 12.706.
    ratio = Ratio.of([(2.0, 1.0), (24.0, 3.0)])
    assert ratio is not None
    assert ratio.mean == pytest.approx(4)
    assert ratio.low is not None
    assert ratio.high is not None
    assert math.log2(ratio.low) == pytest.approx(2 - 12.706, abs=1e-3)
    assert math.log2(ratio.high) == pytest.approx(2 + 12.706, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0.01, 1e6), st.floats(0.01, 1e6)), min_size=2, max_size=8))
def test_swapped_sides_give_the_inverse(pairs: list[tuple[float, float]]) -> None:
    there = Ratio.of(pairs)
    back = Ratio.of([(b, a) for a, b in pairs])
    assert there is not None
    assert back is not None
    assert there.low is not None
    assert back.high is not None
    assert math.log(there.mean) == pytest.approx(-math.log(back.mean), abs=1e-9)
    if math.isfinite(back.high) and there.low > 0:
        assert math.log(there.low) == pytest.approx(-math.log(back.high), abs=1e-6)


@pytest.mark.parametrize(
    ("pairs", "higher", "verdict"),
    [
        pytest.param([(9, 10), (8, 10), (8.5, 10)], False, RatioVerdict.BETTER, id="all lower"),
        pytest.param([(9, 10), (8, 10), (8.5, 10)], True, RatioVerdict.WORSE, id="lower is worse"),
        pytest.param([(9, 10), (12, 10), (10, 10)], False, RatioVerdict.NO_DIFFERENCE, id="noise"),
        pytest.param([(10, 10), (7, 7)], True, RatioVerdict.NO_DIFFERENCE, id="equal"),
        pytest.param([(0.1 + 0.2, 0.3)] * 3, True, RatioVerdict.NO_DIFFERENCE, id="rounding"),
        pytest.param([(1, 10)], False, RatioVerdict.TOO_FEW_SEEDS, id="one seed"),
    ],
)
def test_the_verdict_follows_the_interval(
    pairs: list[tuple[float, float]], higher: bool, verdict: RatioVerdict
) -> None:
    ratio = Ratio.of(pairs)
    assert ratio is not None
    assert ratio.verdict(higher_is_better=higher) is verdict


@pytest.mark.parametrize("pairs", [[], [(0.0, 1.0), (1.0, 1.0)], [(1.0, None)], [(1.0, -1.0)]])
def test_without_positive_pairs_there_is_no_ratio(
    pairs: list[tuple[float | None, float | None]],
) -> None:
    assert Ratio.of(pairs) is None


def test_the_interval_covers_the_truth_as_often_as_promised() -> None:
    # 2000 times five pairs with the true ratio 1.2: 1900 expected, standard deviation 9.7.
    rng = Random(1)
    covered = 0
    for _ in range(2000):
        ratio = Ratio.of([(1.2 * math.exp(rng.gauss(0, 0.3)), 1.0) for _ in range(5)])
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        covered += ratio.low <= 1.2 <= ratio.high
    assert 1865 <= covered <= 1935


def run_with(ttft: float, cached: int = 0) -> Summary:
    records = [make_record(0, token_times=(ttft,), prompt_tokens=100, cached_tokens=cached)]
    return summarise(records, Slo(ttft_seconds=0.25), elapsed_seconds=2.0)


def test_policies_are_compared_with_the_baseline_seed_by_seed() -> None:
    comparison = compare(
        {
            "prefix": {1: run_with(0.10, 50), 2: run_with(0.21, 60), 3: run_with(0.052, 40)},
            "random": {1: run_with(0.20), 2: run_with(0.40), 3: run_with(0.10)},
        },
        baseline="random",
    )
    assert list(comparison.cells) == ["random", "prefix"]
    cell = comparison.cell("prefix", "TTFT p90")
    assert cell.median == pytest.approx(100)
    assert cell.ratio is not None
    assert cell.ratio.mean == pytest.approx((0.5 * 0.525 * 0.52) ** (1 / 3))
    assert cell.verdict is RatioVerdict.BETTER
    assert comparison.cell("random", "TTFT p90").ratio is None
    # The goodput of random is 0 with the second seed, and its hit rate always.
    assert comparison.cell("prefix", "goodput").verdict is RatioVerdict.NO_VALUE
    assert comparison.cell("prefix", "hit rate").verdict is RatioVerdict.NO_VALUE
    assert "TPOT p90" not in [metric.name for metric in comparison.metrics]
    document = json.loads(json.dumps(comparison.to_dict()))
    assert document["metrics"][1]["policies"]["prefix"]["verdict"] == "better"
    assert [run["seed"] for run in document["runs"]] == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    ("summaries", "baseline", "message"),
    [
        ({}, None, "nothing to compare"),
        ({"a": {}}, None, "nothing to compare"),
        ({"a": {1: run_with(0.1)}}, "b", "baseline 'b' was not run; the policies are: a"),
        (
            {"a": {1: run_with(0.1)}, "b": {2: run_with(0.1)}},
            None,
            "policy 'b' was run with the seeds 2, 'a' with 1",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    summaries: dict[str, dict[int, Summary]], baseline: str | None, message: str
) -> None:
    with pytest.raises(ComparisonError, match=message):
        compare(summaries, baseline)


def test_the_table_names_the_baseline_and_takes_policies_literally() -> None:
    comparison = compare(
        {
            "[bold]rr": {1: run_with(0.2), 2: run_with(0.4)},
            "mine": {1: run_with(0.1), 2: run_with(0.2)},
        }
    )
    console = Console(width=100)
    with console.capture() as capture:
        console.print(comparison_table(comparison))
    text = capture.get()
    assert "Ratio to [bold]rr, 2 seeds, 95% interval" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["mine", "150.0", "0.500", "0.500", "to", "0.500", "better"] in rows


def test_samples_that_are_not_paired_have_welchs_interval() -> None:
    # Logarithms 1, 2, 3 against 0, 0: difference 2, error sqrt(1/3), (1/3)²/((1/3)²/2) = 2 degrees.
    ratio = Ratio.of_independent([math.exp(each) for each in (1, 2, 3)], [1.0, 1.0])
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    half = 4.303 * math.sqrt(1 / 3)
    logarithms = [math.log(each) for each in (ratio.mean, ratio.low, ratio.high)]
    assert logarithms == pytest.approx([2, 2 - half, 2 + half], abs=1e-3)
    assert Ratio.of_independent([2.0], [1.0, 1.0]) == Ratio(2.0, None, None, 1)
    assert Ratio.of_independent([2.0, 2.0], [1.0, 1.0]) == Ratio(2.0, 2.0, 2.0, 2)
    assert Ratio.of_independent([0.0], [1.0]) is Ratio.of_independent([], [1.0]) is None
