"""Checks that a stream's replies are legal for any input: for the property tests and the fuzzer.

A reply is legal if Envoy accepts it in its configured modes: any other ends the stream with an
error ("spurious message"), and the client's request with it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import structlog
from google.protobuf.message import DecodeError

from epp.ext_proc import ExtProcSettings, ExtProcState
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import RoutedRequest
from tools.harness.ext_proc import Mode, Modes
from tools.harness.held import Change, HeldDecision, PatientEnvoy
from tools.harness.request_control import Epp, NotingPlugin, make_pool

Step = Callable[["JudgingEnvoy"], object]

ALL_MODES = cast("list[Mode.BodySendMode]", Mode.BodySendMode.values())
UNKNOWN_MODE = cast("Mode.BodySendMode", 77)
"""A mode of a newer Envoy."""

_DUPLEX = Mode.FULL_DUPLEX_STREAMED
# Legal replies to each kind of message; a complete body releases the reply to the headers.
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
    """Checks the replies to every message and to every decision."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.sent: Counter[str] = Counter()
        """How many messages of each kind were sent."""
        self.seen_response = False
        self.immediate = 0

    def send(self, request: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        return self.send_bytes(request.SerializeToString())

    def garble(self, data: bytes = b"\xff") -> None:
        self.send_bytes(data)

    def send_bytes(self, data: bytes) -> list[pb.ProcessingResponse]:
        """Send bytes, valid or not, and return the replies to them."""
        was = self.stream.state
        kind = self._note(data)
        self.take()
        self.line.message(data)
        replies, kinds = self.replies, self.kinds
        if was is ExtProcState.CLOSED:
            assert kinds == []
        if kind is not None and kind.startswith("response"):
            self.seen_response = True
        self.immediate += kinds.count("immediate_response")
        if "immediate_response" in kinds:
            assert kinds == ["immediate_response"]
            assert not self.seen_response
            assert self.finished
        elif self.finished:
            # Detached, after the held part of the response was sent.
            assert set(kinds) <= {"response_body"}
        else:
            assert set(kinds) <= _LEGAL[kind]
            self._judge_number(kind, was, kinds)
        if was is self.stream.state is ExtProcState.DECIDING:
            assert kinds == []
        return replies

    def _note(self, data: bytes) -> str | None:
        """Return the kind of the message in ``data``; read the modes from the first one."""
        try:
            request = pb.ProcessingRequest.FromString(data)
        except DecodeError:
            return None
        kind: str | None = request.WhichOneof("request")
        if kind is None:
            return None
        if self.stream.state is ExtProcState.REQUEST_HEADERS:
            config = request.protocol_config
            self.modes = None
            if request.HasField("protocol_config"):
                self.modes = config.request_body_mode, config.response_body_mode
        self.sent[kind] += 1
        return kind

    def _judge_number(
        self, kind: str | None, was: ExtProcState, kinds: Sequence[str | None]
    ) -> None:
        """Check for one reply to each response message; full-duplex bodies may get any number."""
        if was is ExtProcState.CLOSED or kind not in {
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
        """Check all replies of a closed stream."""
        assert all(code == 0 for code, _ in self.finished)
        assert self.immediate <= 1
        replies = [pb.ProcessingResponse.FromString(each) for each in self.line.received]
        kinds = Counter(str(reply.WhichOneof("response")) for reply in replies)
        for side, mode in (("request", self.request_mode), ("response", self.response_mode)):
            mine = [a for a in replies if (a.WhichOneof("response") or "").startswith(side)]
            places = [_ORDER.index(str(a.WhichOneof("response")).split("_")[1]) for a in mine]
            assert places.count(0) <= 1
            assert places == sorted(places)
            for reply in mine:
                judge_mutation(reply, mode)
            for part in _ORDER:
                # No message is answered twice, and no reply comes without a message.
                if part != "body" or mode != _DUPLEX:
                    assert kinds[f"{side}_{part}"] <= self.sent[f"{side}_{part}"]
        for reply in replies:
            if reply.HasField("mode_override"):
                assert reply.WhichOneof("response") == "response_headers"
                assert self.modes == (Mode.BUFFERED, Mode.NONE)
                assert reply.mode_override.response_body_mode == Mode.STREAMED

    @property
    def asked(self) -> list[HeldDecision]:
        """The pending decision, if there is one."""
        return [held for held in self.handler.held if held.is_awaited]

    def decide_if_asked(self) -> None:
        """Make the pending decision, if there is one."""
        for _ in self.asked:
            assert self.stream.state is ExtProcState.DECIDING
            self.take()
            self.decide()
            assert self.stream.state in {ExtProcState.RESPONSE_HEADERS, ExtProcState.CLOSED}
            if self.kinds == ["immediate_response"]:
                self.immediate += 1
                assert self.finished
            else:
                assert set(self.kinds) <= _OF_A_DECISION
                (routed,) = [each for each in self.replies if each.HasField("dynamic_metadata")]
                assert routed == self.replies[0]


def judge_mutation(reply: pb.ProcessingResponse, mode: int) -> None:
    """A body is sent back in full duplex, and may be replaced or removed in other modes."""
    kind = str(reply.WhichOneof("response"))
    if not kind.endswith("body"):
        return
    mutation = getattr(reply, kind).response.body_mutation
    which = mutation.WhichOneof("mutation")
    if mode == _DUPLEX:
        assert which == "streamed_response"
        assert len(mutation.streamed_response.body) <= 62_000
    else:
        assert which in {None, "body", "clear_body"}


# --- changes of a decided request ---------------------------------------------------------------


def change_nothing(_: RoutedRequest) -> None:
    """Change nothing."""


def rewrite(exchange: RoutedRequest) -> None:
    """Replace the body of every request that has one."""
    if exchange.request.body_bytes:
        exchange.body = b"rewritten" * 10_000


def rename(exchange: RoutedRequest) -> None:
    """Rewrite the model of every request that has a body."""
    if exchange.request.body_bytes:
        exchange.request.model = "nick"
        exchange.body = b"renamed"


class _BadReader:
    """A reader whose methods raise."""

    def feed(self, chunk: bytes) -> None:
        raise RuntimeError("a bug in feed")

    def usage(self) -> None:
        raise RuntimeError("a bug in usage")


def read_badly(exchange: RoutedRequest) -> None:
    """Give every response a reader that fails."""
    exchange._parser, exchange._find_reader = None, lambda _: _BadReader()


CHANGES: tuple[Change, ...] = (change_nothing, rewrite, rename, read_badly)


# --- a whole stream -------------------------------------------------------------------------------


def reply_legally_and_release(
    *,
    modes: Modes | None,
    sends_ahead: bool,
    settings: ExtProcSettings,
    steps: Iterable[Step],
    fails_in: frozenset[str],
    kind: type[HeldDecision] | None,
    change: Change,
    last: str,
) -> JudgingEnvoy:
    """Run the steps on a new stream, end it with the method ``last``, and check everything."""
    plugin = NotingPlugin("p", [], fails_in)
    epp = Epp(make_pool(), plugins=[plugin])
    envoy = JudgingEnvoy(epp, modes, kind=kind, change=change, settings=settings)
    envoy.sends_ahead = sends_ahead
    with structlog.testing.capture_logs() as lines:
        for step in steps:
            step(envoy)
            assert epp.in_flight == epp.director.in_flight <= 1
            assert len(envoy.asked) == (envoy.stream.state is ExtProcState.DECIDING)
            assert (envoy.stream in envoy.service.open_streams) is (
                envoy.stream.state is not ExtProcState.CLOSED
            )
        getattr(envoy, last)()
    assert envoy.stream.state is ExtProcState.CLOSED
    assert not envoy.service.open_streams
    assert epp.in_flight == epp.director.in_flight == 0
    assert epp.total("request_running") == 0
    envoy.judge_all()
    assert envoy.asked == []
    assert all(len(held.cancelled) <= 1 for held in envoy.handler.held)
    assert envoy.line.recorder.sent_after_finish == 0
    ended = [line for line in lines if line["event"] == "request finished"]
    assert len(ended) == len(plugin.ends) == epp.total("request_total") <= 1
    failed = [line["exc_info"] for line in lines if line["event"] == "ext_proc stream failed"]
    assert failed == []
    return envoy
