"""Any sequence of messages, decisions and ends: every answer is legal, nothing stays reserved.

Legal is what Envoy takes in the modes that it was configured to: another answer ends its stream
with an error ("spurious message") and the client's request with it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from request_control.harness import BODY, Epp, NotingPlugin, make_pool

from epp.ext_proc import ExtProcSettings, StreamState
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import Exchange
from ext_proc.harness import Envoy, Mode, Modes, on_each_transport, on_no_transport
from ext_proc.held import Change, DecidedAtOnce, HeldDecision, PatientEnvoy

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
    partial(Envoy.response_headers, headers={"content-type": "text/event-stream"}),
    Envoy.response_body,
]
_KNOWN_MODES = [
    Mode.NONE,
    Mode.STREAMED,
    Mode.BUFFERED,
    Mode.BUFFERED_PARTIAL,
    Mode.FULL_DUPLEX_STREAMED,
]
_ALL_MODES = [*_KNOWN_MODES, Mode.GRPC]
_MODES = st.none() | st.tuples(st.sampled_from(_ALL_MODES), st.sampled_from(_ALL_MODES))
_DUPLEX = Mode.FULL_DUPLEX_STREAMED

# What may be answered to each kind of message; a body that is whole releases the headers' answer.
_LEGAL: dict[str | None, set[str]] = {
    "request_headers": {"request_headers"},
    "request_body": {"request_headers", "request_body"},
    "request_trailers": {"request_headers", "request_body", "request_trailers"},
    "response_headers": {"response_headers"},
    "response_body": {"response_body"},
    "response_trailers": {"response_body", "response_trailers"},
    None: set(),
}
_ORDER = ["headers", "body", "trailers"]
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
        self.immediate += kinds.count("immediate_response")
        if "immediate_response" in kinds:
            assert kinds == ["immediate_response"]
            assert not self.seen_response
            assert self.finished
        elif self.finished:
            # Left alone; what was held of the response is given back first.
            assert set(kinds) <= {"response_body"}
        else:
            assert set(kinds) <= _LEGAL[kind]
            self._judge_number(kind, was, kinds)
        if was is self.stream.state is StreamState.DECIDING:
            assert kinds == []
        return answers

    def _judge_number(
        self, kind: str | None, was: StreamState, kinds: Sequence[str | None]
    ) -> None:
        """Envoy waits for one answer to each of these; only full duplex takes any number."""
        if was is StreamState.CLOSED or kind not in {
            "response_headers",
            "response_body",
            "response_trailers",
        }:
            return
        if kind != "response_body" or self.response_mode != _DUPLEX:
            assert kinds.count(kind) == 1

    @property
    def request_mode(self) -> int:
        return _DUPLEX if self.modes is None else self.modes[0]

    @property
    def response_mode(self) -> int:
        return _DUPLEX if self.modes is None else self.modes[1]

    def judge_all(self) -> None:
        """Judge the whole stream, which is over."""
        assert all(code == 0 for code, _ in self.finished)
        assert self.immediate <= 1
        answers = [pb.ProcessingResponse.FromString(each) for each in self.line.received]
        for side, mode in (("request", self.request_mode), ("response", self.response_mode)):
            mine = [a for a in answers if (a.WhichOneof("response") or "").startswith(side)]
            places = [_ORDER.index(str(a.WhichOneof("response")).split("_")[1]) for a in mine]
            assert places.count(0) <= 1
            assert places == sorted(places)
            for answer in mine:
                judge_mutation(answer, mode)
        for answer in answers:
            if answer.HasField("mode_override"):
                assert answer.WhichOneof("response") == "response_headers"
                assert self.modes == (Mode.BUFFERED, Mode.NONE)
                assert answer.mode_override.response_body_mode == Mode.STREAMED

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


def judge_mutation(answer: pb.ProcessingResponse, mode: int) -> None:
    """A body is given back in full duplex, and may be replaced or taken out in other modes."""
    kind = str(answer.WhichOneof("response"))
    if not kind.endswith("body"):
        return
    mutation = getattr(answer, kind).response.body_mutation
    which = mutation.WhichOneof("mutation")
    if mode == _DUPLEX:
        assert which == "streamed_response"
        assert len(mutation.streamed_response.body) <= 62_000
    else:
        assert which in {None, "body", "clear_body"}


def rewrite(exchange: Exchange) -> None:
    """Have every request with a body sent on with another one."""
    if exchange.request.body_bytes:
        exchange.body = b"rewritten" * 10_000


def rename(exchange: Exchange) -> None:
    """Have every request with a body sent on with another model's name."""
    if exchange.request.body_bytes:
        exchange.request.model = "nick"
        exchange.body = b"renamed"


class BadReader:
    """Breaks its contract in every way."""

    def feed(self, chunk: bytes) -> None:
        raise RuntimeError("a bug in feed")

    def usage(self) -> None:
        raise RuntimeError("a bug in usage")


def read_badly(exchange: Exchange) -> None:
    """Have every answer read by a reader that fails."""
    exchange.find_reader = lambda _: BadReader()


_any_sequence = given(
    modes=_MODES,
    sends_ahead=st.booleans(),
    settings=st.sampled_from(
        [
            ExtProcSettings(),
            ExtProcSettings(sample_usage=1.0, max_body_bytes=100, error_body="text"),
        ]
    ),
    good=st.integers(0, len(_GOOD)),
    steps=st.lists(_MESSAGES | _DECIDES | _ENDS, max_size=12),
    fails_in=st.frozensets(st.sampled_from(["pre_request", "response_complete"])),
    kind=st.sampled_from([None, HeldDecision, DecidedAtOnce]),
    change=st.sampled_from([lambda _: None, rewrite, rename, read_badly]),
    last=st.sampled_from(["reset", "half_close", "drain"]),
)


@on_no_transport  # on a wire a step takes twenty times as long
@settings(max_examples=600)
@_any_sequence
def test_any_sequence_is_answered_legally_and_released(**sequence: Any) -> None:
    answer_legally_and_release(**sequence)


@on_each_transport
@settings(max_examples=200)
@_any_sequence
def test_any_sequence_is_answered_legally_and_released_on_a_wire(**sequence: Any) -> None:
    answer_legally_and_release(**sequence)


_EVERY_MESSAGE: list[Step] = [
    *(partial(Envoy.request_headers, end=end) for end in (False, True)),
    *(partial(Envoy.request_body, end=end) for end in (False, True)),
    Envoy.request_trailers,
    *(partial(Envoy.response_headers, end=end) for end in (False, True)),
    *(partial(Envoy.response_body, end=end) for end in (False, True)),
    Envoy.response_trailers,
    Envoy.garble,
    lambda envoy: envoy.tell(pb.ProcessingRequest()),
]


@on_no_transport  # it is a few thousand streams
@pytest.mark.parametrize("good", range(len(_GOOD) + 1))
@pytest.mark.parametrize("change", [lambda _: None, rename], ids=["as it is", "renamed"])
def test_every_message_in_every_state_and_mode(good: int, change: Change) -> None:
    # Without GRPC, in which a stream ends at its first message.
    pairs: list[Modes | None] = [None]
    pairs += product(_KNOWN_MODES, _KNOWN_MODES)
    for modes, message in product(pairs, _EVERY_MESSAGE):
        answer_legally_and_release(
            modes=modes,
            sends_ahead=True,
            settings=ExtProcSettings(),
            good=good,
            steps=[message],
            fails_in=frozenset(),
            kind=HeldDecision,
            change=change,
            last="reset",
        )


def answer_legally_and_release(
    *,
    modes: Modes | None,
    sends_ahead: bool,
    settings: ExtProcSettings,
    good: int,
    steps: list[Step],
    fails_in: frozenset[str],
    kind: type[HeldDecision] | None,
    change: Change,
    last: str,
) -> None:
    plugin = NotingPlugin("p", [], fails_in)
    epp = Epp(make_pool(), plugins=[plugin])
    envoy = JudgingEnvoy(epp, modes, kind=kind, change=change, settings=settings)
    envoy.sends_ahead = sends_ahead
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
    envoy.judge_all()
    assert envoy.asked == []
    assert all(len(held.cancelled) <= 1 for held in envoy.handler.held)
    assert envoy.line.recorder.sent_after_finish == 0
    ended = [line for line in lines if line["event"] == "request finished"]
    assert len(ended) == len(plugin.ends) == epp.total("request_total") <= 1
    assert "ext_proc stream failed" not in [line["event"] for line in lines]
