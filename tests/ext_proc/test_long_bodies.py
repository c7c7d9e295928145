"""Long request bodies are sent back as Envoy reads them, and in order with other replies."""

from collections.abc import Callable
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.ext_proc import ExtProcSettings, processing_response
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.ext_proc import (
    BUFFERED,
    CONTINUE_REQUEST_TRAILERS,
    FULL_DUPLEX,
    LEAN,
    Envoy,
    Modes,
    echoed,
    on_no_transport,
)
from tools.harness.held import PatientEnvoy
from tools.harness.request_control import Epp, make_pool
from tools.harness.wires import Narrow

pytestmark = on_no_transport  # the room of a wire is not controllable

CHUNKS = [b'{"model": "tiny", "prompt": "', *(b"%05d" % n * 10_000 for n in range(6)), b'"}']
BODY = b"".join(CHUNKS)
PIECES = -(-len(BODY) // processing_response.MAX_BODY_CHUNK_BYTES)
"""Number of replies that send it back."""


@pytest.fixture
def envoy(monkeypatch: pytest.MonkeyPatch, wire: object) -> Envoy:
    monkeypatch.setattr("tools.harness.wires.Recorder", Narrow)
    return Envoy(Epp(make_pool()), LEAN)


def send(envoy: Envoy, *, with_trailers: bool = False) -> None:
    envoy.request_headers()
    for chunk in CHUNKS:
        envoy.request_body(chunk, end=chunk is CHUNKS[-1] and not with_trailers)
    if with_trailers:
        envoy.request_trailers()


def make_room(envoy: Envoy, replies: int) -> None:
    recorder = envoy.line.recorder
    assert isinstance(recorder, Narrow)
    recorder.room = len(recorder.sent) + replies
    envoy.writable()


def assert_whole(replies: list[pb.ProcessingResponse], *, ends: bool) -> None:
    """Assert that the replies send the body back and nothing else."""
    body, flags = echoed(replies, "request_body")
    assert body == BODY
    assert flags == [False] * (len(replies) - 1) + [ends]


@pytest.mark.parametrize("room", [1, 2, 100])
def test_a_long_body_is_sent_back_only_as_far_as_there_is_room(envoy: Envoy, room: int) -> None:
    send(envoy)
    assert len(envoy.all_replies) == Narrow.room
    while len(replies := envoy.all_replies) < 1 + PIECES:
        make_room(envoy, room)
        assert 0 < len(envoy.all_replies) - len(replies) <= room
    assert_whole(replies[1:], ends=True)
    make_room(envoy, room)
    assert envoy.all_replies == replies


def test_trailers_are_answered_after_the_body(envoy: Envoy) -> None:
    send(envoy, with_trailers=True)
    assert len(envoy.all_replies) == Narrow.room
    make_room(envoy, 100)
    _, *body, trailers = envoy.all_replies
    assert_whole(body, ends=False)
    assert trailers == CONTINUE_REQUEST_TRAILERS


def test_repeated_trailers_are_answered_once(envoy: Envoy) -> None:
    send(envoy, with_trailers=True)
    for _ in range(3):
        envoy.request_trailers()
    make_room(envoy, 100)
    _, *body, trailers = envoy.all_replies
    assert_whole(body, ends=False)
    assert trailers == CONTINUE_REQUEST_TRAILERS


def test_a_long_body_is_held_until_all_of_it_is_sent_back(envoy: Envoy) -> None:
    send(envoy)
    held = envoy.service.held
    while (sent := len(envoy.all_replies)) < PIECES:
        assert held.used_bytes == len(BODY) - (sent - 1) * processing_response.MAX_BODY_CHUNK_BYTES
        make_room(envoy, 1)
    make_room(envoy, 100)
    assert_whole(envoy.all_replies[1:], ends=True)
    assert held.used_bytes == 0


def test_a_body_of_small_chunks_goes_back_in_one_piece(envoy: Envoy) -> None:
    """Chunks of one byte kept as objects would take fifty times the size of the body."""
    body = b'{"model": "tiny", "prompt": "' + b"x" * 1500 + b'"}'
    envoy.request_headers()
    for at in range(len(body)):
        envoy.request_body(body[at : at + 1], end=False)
    envoy.request_body(b"")
    _, *echoes = envoy.all_replies
    given_back, ends = echoed(echoes, "request_body")
    assert given_back == body
    assert ends == [True]


def test_an_early_response_does_not_wait_for_the_rest_of_the_body(envoy: Envoy) -> None:
    send(envoy)
    (reply,) = envoy.response_headers("413")
    assert reply.WhichOneof("response") == "response_headers"
    make_room(envoy, 100)
    rest = [each for each in envoy.all_replies[1:] if each != reply]
    assert_whole(rest, ends=True)


def stopped(envoy: Envoy) -> None:
    envoy.drain()


def out_of_order(envoy: Envoy) -> None:
    envoy.response_body()


def test_a_stream_that_the_epp_ends_answers_the_trailers_too(envoy: Envoy) -> None:
    send(envoy, with_trailers=True)
    envoy.drain()
    _, *body, trailers = envoy.all_replies
    assert_whole(body, ends=False)
    assert trailers == CONTINUE_REQUEST_TRAILERS
    assert envoy.finished == [(0, "")]


def test_a_response_of_envoys_own_releases_the_body(envoy: Envoy) -> None:
    envoy.request_headers()
    envoy.request_body(CHUNKS[1], end=False)
    assert envoy.service.held.used_bytes == len(CHUNKS[1])
    envoy.response_headers("413")
    held = envoy.service.held
    assert (held.used_bytes, held.arriving_bodies) == (0, 0)


@pytest.mark.parametrize("end", [stopped, out_of_order])
def test_a_stream_that_the_epp_ends_sends_the_rest_of_the_body_first(
    envoy: Envoy, end: Callable[[Envoy], None]
) -> None:
    send(envoy)
    end(envoy)
    assert_whole(envoy.all_replies[1:], ends=True)
    assert envoy.finished == [(0, "")]


def test_nothing_is_sent_back_after_a_reset(envoy: Envoy) -> None:
    send(envoy)
    envoy.reset()
    before = envoy.all_replies
    make_room(envoy, 100)
    assert envoy.all_replies == before


def test_a_body_is_sent_back_as_there_is_room_after_a_pending_decision(
    monkeypatch: pytest.MonkeyPatch, wire: object
) -> None:
    monkeypatch.setattr("tools.harness.wires.Recorder", Narrow)
    envoy = PatientEnvoy(Epp(make_pool()), LEAN)
    send(envoy, with_trailers=True)
    assert envoy.all_replies == []
    envoy.decide()
    assert len(envoy.all_replies) == Narrow.room
    make_room(envoy, 100)
    _, *body, trailers = envoy.all_replies
    assert_whole(body, ends=False)
    assert trailers == CONTINUE_REQUEST_TRAILERS


Step = Callable[[PatientEnvoy], object]


def decide(envoy: PatientEnvoy) -> None:
    for each in envoy.handler.held:
        if each.is_awaited:
            envoy.wire.call(each.decide)


STEPS: dict[str, Step] = {
    "a chunk": lambda envoy: envoy.request_body(CHUNKS[1], end=False),
    "the last chunk": lambda envoy: envoy.request_body(CHUNKS[-1]),
    "trailers": lambda envoy: envoy.request_trailers(),
    "decision": decide,
    "room": lambda envoy: make_room(envoy, 1),
    "response headers": lambda envoy: envoy.response_headers(),
    "a whole response": lambda envoy: envoy.response_headers(end=True),
    "response body": lambda envoy: envoy.response_body(),
    "end of the response": lambda envoy: envoy.response_body(end=True),
    "drain": lambda envoy: envoy.drain(),
    "idle": lambda envoy: envoy.wire.call(lambda: envoy.stream.time_out("stream-idle", "idle")),
    "end in a pause": lambda envoy: envoy.wire.call(envoy.stream.end_in_pause),
    "half-close": lambda envoy: envoy.half_close(),
    "no message": lambda envoy: envoy.garble(),
}


@given(
    steps=st.lists(st.lists(st.sampled_from(sorted(STEPS)), max_size=12), min_size=1, max_size=7),
    modes=st.sampled_from([LEAN, FULL_DUPLEX, BUFFERED]),
)
def test_held_bytes_are_released_once_in_every_order_of_steps(
    wire: object, steps: list[list[str]], modes: Modes
) -> None:
    """The streams take their steps in turn and are reset at the end."""
    limits = ExtProcSettings(max_body_bytes=200_000, max_held_bytes=400_000)
    with pytest.MonkeyPatch.context() as patched, capture_logs():
        patched.setattr("tools.harness.wires.Recorder", Narrow)
        epp = Epp(make_pool())
        envoys = [PatientEnvoy(epp, modes, settings=limits)]
        service = envoys[0].service
        envoys += [PatientEnvoy(epp, modes, service=service) for _ in steps[1:]]
        for envoy in envoys:
            envoy.request_headers()
        for turn in zip_longest(*steps):
            for envoy, step in zip(envoys, turn, strict=True):
                if step is not None:
                    STEPS[step](envoy)
                assert 0 <= service.held.used_bytes <= limits.max_held_bytes
                assert 0 <= service.held.arriving_bodies <= len(service.open_streams)
        for envoy in envoys:
            envoy.reset()
        assert (service.held.used_bytes, service.held.arriving_bodies) == (0, 0)
        assert not any(envoy.line.recorder.is_paused for envoy in envoys)
        assert epp.director.in_flight == 0
