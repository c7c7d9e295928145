"""Any sequence of messages, decisions and ends: every reply is legal, nothing stays reserved."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.ext_proc import ExtProcSettings
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.ext_proc import Envoy, on_each_transport, on_no_transport
from tools.harness.held import DecidedAtOnce, HeldDecision
from tools.harness.judge import ALL_MODES, CHANGES, JudgingEnvoy, Step, reply_legally_and_release
from tools.harness.request_control import BODY

pytestmark = pytest.mark.usefixtures("wire")

_CHUNKS = st.sampled_from([BODY, b"", BODY[:9], b"{", b"x" * 70_000])
_MESSAGES: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        lambda end: lambda envoy: envoy.request_headers(end=end),
        st.booleans(),
    ),
    st.builds(
        lambda body, end: lambda envoy: envoy.request_body(body, end=end), _CHUNKS, st.booleans()
    ),
    st.just(Envoy.request_trailers),
    st.builds(
        lambda end, kind, served: (
            lambda envoy: envoy.response_headers(
                end=end, headers={"content-type": kind}, served=served
            )
        ),
        st.booleans(),
        st.sampled_from(["application/json", "text/event-stream"]),
        st.sampled_from(["", "10.0.0.1:8000", "10.0.0.2:8000", "nowhere"]),
    ),
    st.builds(
        lambda body, end: lambda envoy: envoy.response_body(body, end=end), _CHUNKS, st.booleans()
    ),
    st.just(Envoy.response_trailers),
    st.just(JudgingEnvoy.garble),
    st.just(lambda envoy: envoy.send(pb.ProcessingRequest())),
)
_ENDS: st.SearchStrategy[Step] = st.sampled_from(
    [
        Envoy.reset,
        Envoy.half_close,
        Envoy.drain,
        Envoy.writable,
    ]
)
_DECIDES: st.SearchStrategy[Step] = st.just(lambda envoy: envoy.decide_if_asked())
# A stream as it should be, of which a prefix is taken so that later states are reached often.
_GOOD: list[Step] = [
    Envoy.request_headers,
    Envoy.request_body,
    lambda envoy: envoy.decide_if_asked(),
    partial(Envoy.response_headers, headers={"content-type": "text/event-stream"}),
    Envoy.response_body,
]
_EVERY_MODE = st.sampled_from(ALL_MODES)
_MODES = st.none() | st.tuples(_EVERY_MODE, _EVERY_MODE)

_any_sequence = given(
    modes=_MODES,
    sends_ahead=st.booleans(),
    settings=st.sampled_from(
        [
            ExtProcSettings(),
            ExtProcSettings(sample_usage=1.0, max_body_bytes=100, error_body="text"),
        ]
    ),
    good=st.integers(0, len(_GOOD)).map(lambda count: _GOOD[:count]),
    steps=st.lists(_MESSAGES | _DECIDES | _ENDS, max_size=12),
    fails_in=st.frozensets(st.sampled_from(["pre_request", "response_complete"])),
    kind=st.sampled_from([None, HeldDecision, DecidedAtOnce]),
    change=st.sampled_from(CHANGES),
    last=st.sampled_from(["reset", "half_close", "drain"]),
)


@on_no_transport  # on a wire a step takes twenty times as long
@settings(max_examples=300)
@_any_sequence
def test_any_sequence_is_answered_legally_and_released(
    good: list[Step], steps: list[Step], **stream: Any
) -> None:
    reply_legally_and_release(steps=[*good, *steps], **stream)


@on_each_transport
@settings(max_examples=80)
@_any_sequence
def test_any_sequence_is_answered_legally_and_released_on_a_wire(
    good: list[Step], steps: list[Step], **stream: Any
) -> None:
    reply_legally_and_release(steps=[*good, *steps], **stream)
