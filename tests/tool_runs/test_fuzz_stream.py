"""The target of the ext_proc stream on random inputs, and on well-formed streams."""

from collections import Counter
from collections.abc import Iterator

import pytest

from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.fuzz import stream
from tools.harness.ext_proc import Mode
from tools.harness.judge import JudgingEnvoy

_KINDS = ("request_headers", "request_body", "response_headers", "response_body")
INPUTS = 300


def run(inputs: Iterator[bytes]) -> Iterator[JudgingEnvoy]:
    for data in inputs:
        try:
            yield stream.one_input(data)
        except Exception as error:
            error.add_note(f"input: {data.hex()}")
            raise


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_envoy_sends_breaks_a_stream(seed: int) -> None:
    answered = Counter[str]()
    for envoy in run(stream.inputs(seed, INPUTS)):
        responses = map(pb.ProcessingResponse.FromString, envoy.line.received)
        answered.update(str(response.WhichOneof("response")) for response in responses)
    for side in ("request", "response"):
        for part in ("headers", "body", "trailers"):
            assert answered[f"{side}_{part}"]
    assert answered["immediate_response"] > 50


def test_streams_as_they_should_be_are_answered_to_the_end() -> None:
    for envoy in run(stream.good_inputs()):
        assert envoy.modes is not None
        is_refused = Mode.GRPC in envoy.modes
        assert envoy.immediate == is_refused
        assert envoy.sent == dict.fromkeys(_KINDS, 1) | {"response_body": 3}
        last = pb.ProcessingResponse.FromString(envoy.line.received[-1])
        assert last.WhichOneof("response") == (
            "immediate_response" if is_refused else "response_body"
        )
