"""Any sequence of messages, decisions and ends: every answer is legal, nothing stays reserved."""

from collections.abc import Callable
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from request_control.harness import BODY, Epp, NotingPlugin, make_pool

from epp.ext_proc import StreamState
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import Exchange
from ext_proc.harness import Envoy, Mode, on_each_transport, on_no_transport
from ext_proc.held import DecidedAtOnce, HeldDecision, PatientEnvoy

pytestmark = pytest.mark.usefixtures("wire")

Step = Callable[["JudgingEnvoy"], object]

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
        lambda end, served: lambda envoy: envoy.response_headers(end=end, served=served),
        st.booleans(),
        st.sampled_from(["", "10.0.0.1:8000", "10.0.0.2:8000", "nowhere"]),
    ),
    st.builds(
        lambda body, end: lambda envoy: envoy.response_body(body, end=end), _CHUNKS, st.booleans()
    ),
    st.just(Envoy.response_trailers),
    st.just(Envoy.garble),
    st.just(lambda envoy: envoy.tell(pb.ProcessingRequest())),
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
    Envoy.response_headers,
    Envoy.response_body,
]
_MODES = st.sampled_from(list(Mode.BodySendMode.values()))

# What may be answered to each kind of message; a body that is whole releases the headers' answer.
_LEGAL: dict[str | None, set[str]] = {
    "request_headers": {"request_headers"},
    "request_body": {"request_headers", "request_body"},
    "request_trailers": {"request_headers", "request_body", "request_trailers"},
    "response_headers": {"response_headers"},
    "response_body": {"response_body"},
    "response_trailers": {"response_trailers"},
    None: set(),
}
_OF_A_DECISION = {"request_headers", "request_body", "request_trailers"}


class JudgingEnvoy(PatientEnvoy):
    """Judges the answers to every message, and to every decision."""

    seen_response = False
    immediate = 0

    def tell(self, request: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        was = self.stream.state
        kind = request.WhichOneof("request")
        answers = super().tell(request)
        kinds = self.kinds
        if was is StreamState.CLOSED:
            assert kinds == []
        if kind is not None and kind.startswith("response"):
            self.seen_response = True
        if "immediate_response" in kinds:
            assert kinds[-1] == "immediate_response"
            assert not self.seen_response
            assert self.finished
            kinds = kinds[:-1]
            assert kinds == []
        assert set(kinds) <= _LEGAL[kind]
        self.immediate += self.kinds.count("immediate_response")
        if was is self.stream.state is StreamState.DECIDING:
            assert kinds == []
        return answers

    @property
    def asked(self) -> list[HeldDecision]:
        """The decision that the stream waits for, if it does."""
        return [held for held in self.handler.held if held.is_awaited]

    def decide_if_asked(self) -> None:
        """Have the decision made that the stream waits for."""
        for _ in self.asked:
            assert self.stream.state is StreamState.DECIDING
            self.take()
            self.decide()
            assert self.stream.state in {StreamState.RESPONSE_HEADERS, StreamState.CLOSED}
            if self.kinds == ["immediate_response"]:
                self.immediate += 1
                assert self.finished
            else:
                assert set(self.kinds) <= _OF_A_DECISION
                (routed,) = [each for each in self.answers if each.HasField("dynamic_metadata")]
                assert routed == self.answers[0]


def rewrite(exchange: Exchange) -> None:
    """Have every request with a body sent on with another one."""
    if exchange.request.body_bytes:
        exchange.body = b"rewritten" * 10_000


_any_sequence = given(
    request_mode=_MODES,
    response_mode=_MODES,
    good=st.integers(0, len(_GOOD)),
    steps=st.lists(_MESSAGES | _DECIDES | _ENDS, max_size=12),
    fails_in=st.frozensets(st.sampled_from(["pre_request", "response_complete"])),
    kind=st.sampled_from([None, HeldDecision, DecidedAtOnce]),
    change=st.sampled_from([lambda _: None, rewrite]),
    last=st.sampled_from(["reset", "half_close", "drain"]),
)


@on_no_transport  # on a wire a step takes twenty times as long
@settings(max_examples=400)
@_any_sequence
def test_any_sequence_is_answered_legally_and_released(**sequence: Any) -> None:
    answer_legally_and_release(**sequence)


@on_each_transport
@settings(max_examples=200)
@_any_sequence
def test_any_sequence_is_answered_legally_and_released_on_a_wire(**sequence: Any) -> None:
    answer_legally_and_release(**sequence)


def answer_legally_and_release(
    *,
    request_mode: Mode.BodySendMode,
    response_mode: Mode.BodySendMode,
    good: int,
    steps: list[Step],
    fails_in: frozenset[str],
    kind: type[HeldDecision] | None,
    change: Callable[[Exchange], None],
    last: str,
) -> None:
    plugin = NotingPlugin("p", [], fails_in)
    epp = Epp(make_pool(), plugins=[plugin])
    envoy = JudgingEnvoy(epp, (request_mode, response_mode), kind=kind, change=change)
    with structlog.testing.capture_logs() as lines:
        for step in [*_GOOD[:good], *steps]:
            step(envoy)
            assert epp.in_flight == epp.director.in_flight <= 1
            assert len(envoy.asked) == (envoy.stream.state is StreamState.DECIDING)
            assert (envoy.stream in envoy.service.open_streams) is (
                envoy.stream.state is not StreamState.CLOSED
            )
        getattr(envoy, last)()
    assert envoy.stream.state is StreamState.CLOSED
    assert not envoy.service.open_streams
    assert epp.in_flight == epp.director.in_flight == 0
    assert epp.total("request_running") == 0
    assert envoy.immediate <= 1
    assert envoy.asked == []
    assert all(len(held.cancelled) <= 1 for held in envoy.handler.held)
    assert envoy.line.recorder.sent_after_finish == 0
    ended = [line for line in lines if line["event"] == "request finished"]
    assert len(ended) == len(plugin.ends) == epp.total("request_total") <= 1
    assert "ext_proc stream failed" not in [line["event"] for line in lines]
