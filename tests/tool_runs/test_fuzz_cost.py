"""The cost target, for a few seconds, counting calls and bytes instead of seconds."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tools.fuzz import cost
from tools.fuzz.cost_cases import HEADERS, REQUESTS, Dense
from tools.fuzz.cost_pipelines import CONFIGURATIONS, picker
from tools.fuzz.growth import count_calls, quiet

INPUTS = 30


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    for configuration in CONFIGURATIONS:
        picker(configuration)
    with quiet():
        yield


def most_calls(made: cost.Call) -> int:
    """Return how many functions the longest step calls, those written in C among them."""
    counts = [0]

    def steps() -> None:
        for _ in made.steps():
            counts.append(0)  # noqa: PERF401 - the last of them is counted in meanwhile

    count_calls(steps, counts)
    return max(counts)


def check(made: cost.Call) -> None:
    assert most_calls(made) < cost.MAX_CALLS
    cost.check_memory(made.run)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("case", REQUESTS.values(), ids=REQUESTS)
def test_a_dense_body_of_64_kb_takes_little(case: Dense, configuration: str) -> None:
    headers = {":path": case.path, "x-llm-d-model-name-rewrite": "other"}
    check(cost.Call(configuration, headers, case.body(cost.MAX_BODY_BYTES)))


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("name", HEADERS)
def test_a_header_of_60_kb_takes_little(name: str, configuration: str) -> None:
    before, unit, after = HEADERS[name]
    headers = {
        ":path": "/v1/completions",
        name: (before + unit * 60_000)[:60_000].decode() + after.decode(),
    }
    check(cost.Call(configuration, headers, b'{"model":"m","prompt":"a"}'))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_sent_takes_little(seed: int) -> None:
    for tape in cost.inputs(seed, INPUTS):
        try:
            check(cost.call(tape))
        except Exception as error:
            error.add_note(f"tape: {tape.hex()}: {cost.described(tape)}")
            raise


def test_random_inputs_reach_what_they_are_meant_to_reach() -> None:
    reached = Counter[str]()
    for tape in cost.inputs(0, 300):
        made = cost.call(tape)
        reached["response" if made.response else "request"] += 1
        reached[made.configuration] += 1
        reached["long"] += len(made.body) > 60_000
        reached["long header"] += any(len(value) > 50_000 for value in made.headers.values())
        reached["renamed"] += "x-llm-d-model-name-rewrite" in made.headers
    assert min(reached.values()) > 30
    assert reached["long"] > 150


def test_what_costs_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = next(cost.inputs(0, 1))
    monkeypatch.setattr(cost, "MAX_SECONDS", -1.0)
    with pytest.raises(cost.CostError, match=r"a step takes .* ms, more than -1000"):
        cost.one_input(tape)
    monkeypatch.setattr(cost, "MAX_PEAK_BYTES", 0)
    with pytest.raises(cost.CostError, match="it takes 0 MiB, more than 0"):
        cost.check_memory(cost.call(tape).run)


def test_the_search_keeps_the_dearest_of_each_kind_apart() -> None:
    costliest = cost.Costliest()
    tapes = list(cost.inputs(1, 400))
    for number, tape in enumerate(tapes):
        costliest.add(tape, number / 1000)
    lines = list(costliest.shown())
    assert len(lines) == 10
    assert lines[0].strip().startswith(("399", "398", "397", "396", "395"))
