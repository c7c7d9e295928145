"""The target of the parsers on random inputs and on the bodies of the tests, without atheris."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest

from epp.parsing import ParsedRequest, Usage
from tools.fuzz import parsers, request_bodies, responses, seeds

INPUTS = 1200


def run(inputs: Iterable[bytes]) -> None:
    for data in inputs:
        try:
            parsers.one_input(data)
        except Exception as error:
            error.add_note(f"input: {data.hex()}")
            raise


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_is_read_breaks_a_parser(seed: int) -> None:
    run(parsers.inputs(seed, INPUTS))


def test_inputs_that_the_fuzzer_begins_with_pass() -> None:
    began_with = list(seeds.of_parsers())
    assert len(began_with) > 300
    run(began_with)


def test_random_inputs_reach_what_they_are_meant_to_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = Counter[str]()
    check_request, check_reader = request_bodies.check_request, responses.check_reader
    check_names = responses.check_names

    def request(path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | None:
        reading = check_request(path, headers, body)
        reached["refused" if reading is None else f"read {path}"] += 1
        return reading

    def reader(path: str, kind: str, pieces: Sequence[bytes]) -> Usage | None:
        usage = check_reader(path, kind, pieces)
        reached[f"usage {path}"] += usage is not None
        return usage

    def names(pieces: Sequence[bytes], *, is_event_stream: bool) -> bytes:
        passed = check_names(pieces, is_event_stream=is_event_stream)
        reached["renamed"] += passed != b"".join(pieces)
        return passed

    monkeypatch.setattr(request_bodies, "check_request", request)
    monkeypatch.setattr(responses, "check_reader", reader)
    monkeypatch.setattr(responses, "check_names", names)
    run(parsers.inputs(0, INPUTS))
    run(seeds.of_parsers())
    assert reached["refused"] > 50
    assert reached["renamed"] > 10
    for path in request_bodies.PATHS:
        if path not in {"/v1/generate", ""}:  # SGLang has no such path; an empty one is a default
            assert reached[f"read {path}"], path
    for path in responses.PATHS:
        assert reached[f"usage {path}"], path


@pytest.mark.parametrize(
    ("response", "prompt_tokens"),
    [
        pytest.param(
            b'{"usage":{"prompt_tokens":1},"x":{"usage":{"prompt_tokens":2}}}', 2, id="the last"
        ),
        pytest.param(
            b'{"usage":{"x":{"usage":{"prompt_tokens":1}},"prompt_tokens":3}}', 3, id="the outer"
        ),
        pytest.param(b'{"usage":{"x":1}}', None, id="none"),
    ],
)
def test_what_usage_is_compared_with_is_found_by_itself(
    response: bytes, prompt_tokens: int | None
) -> None:
    *_, last = (None, *responses._usages(responses._pairs(response)))
    counted = None if last is None else responses._counted(last)
    assert (None if counted is None else counted.prompt_tokens) == prompt_tokens
