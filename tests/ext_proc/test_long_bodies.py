"""Long request bodies go back to Envoy as it takes them, and nothing overtakes them."""

from collections.abc import Callable

import pytest
from request_control.harness import Epp, make_pool

from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from ext_proc.harness import LEAN, Envoy, echoed, on_no_transport
from ext_proc.held import PatientEnvoy
from ext_proc.wires import Recorder

pytestmark = on_no_transport  # a wire has room for as much as it likes

CHUNKS = [b'{"model": "tiny", "prompt": "', *(b"%05d" % n * 10_000 for n in range(6)), b'"}']
BODY = b"".join(CHUNKS)
CONTINUE_REQUEST_TRAILERS = pb.ProcessingResponse(request_trailers=pb.TrailersResponse())


class Narrow(Recorder):
    """A stream that has room for so many answers."""

    room = 3

    @property
    def is_writable(self) -> bool:
        return len(self.sent) < self.room


@pytest.fixture
def envoy(monkeypatch: pytest.MonkeyPatch, wire: object) -> Envoy:
    monkeypatch.setattr("ext_proc.wires.Recorder", Narrow)
    return Envoy(Epp(make_pool()), LEAN)


def send(envoy: Envoy, *, with_trailers: bool = False) -> None:
    envoy.request_headers()
    for chunk in CHUNKS:
        envoy.request_body(chunk, end=chunk is CHUNKS[-1] and not with_trailers)
    if with_trailers:
        envoy.request_trailers()


def make_room(envoy: Envoy, answers: int) -> None:
    recorder = envoy.line.recorder
    assert isinstance(recorder, Narrow)
    recorder.room = len(recorder.sent) + answers
    envoy.writable()


def all_answers(envoy: Envoy) -> list[pb.ProcessingResponse]:
    return [pb.ProcessingResponse.FromString(each) for each in envoy.line.received]


def assert_whole(answers: list[pb.ProcessingResponse], *, ends: bool) -> None:
    """The answers give the body back, and nothing else."""
    body, flags = echoed(answers, "request_body")
    assert body == BODY
    assert flags == [False] * (len(answers) - 1) + [ends]


@pytest.mark.parametrize("room", [1, 2, 100])
def test_no_more_of_a_body_goes_back_than_there_is_room_for(envoy: Envoy, room: int) -> None:
    send(envoy)
    assert len(all_answers(envoy)) == Narrow.room
    while len(answers := all_answers(envoy)) < 1 + len(CHUNKS):
        make_room(envoy, room)
        assert 0 < len(all_answers(envoy)) - len(answers) <= room
    assert_whole(answers[1:], ends=True)
    make_room(envoy, room)
    assert all_answers(envoy) == answers


def test_trailers_are_answered_behind_the_body(envoy: Envoy) -> None:
    send(envoy, with_trailers=True)
    assert len(all_answers(envoy)) == Narrow.room
    make_room(envoy, 100)
    _, *body, trailers = all_answers(envoy)
    assert_whole(body, ends=False)
    assert trailers == CONTINUE_REQUEST_TRAILERS


def test_an_answer_that_comes_early_does_not_wait_for_the_rest_of_the_body(envoy: Envoy) -> None:
    send(envoy)
    (answer,) = envoy.response_headers("413")
    assert answer.WhichOneof("response") == "response_headers"
    make_room(envoy, 100)
    rest = [each for each in all_answers(envoy)[1:] if each != answer]
    assert_whole(rest, ends=True)


def stopped(envoy: Envoy) -> None:
    envoy.drain()


def out_of_order(envoy: Envoy) -> None:
    envoy.response_body()


@pytest.mark.parametrize("end", [stopped, out_of_order])
def test_a_stream_that_the_epp_ends_gives_back_the_whole_body_first(
    envoy: Envoy, end: Callable[[Envoy], None]
) -> None:
    send(envoy)
    end(envoy)
    assert_whole(all_answers(envoy)[1:], ends=True)
    assert envoy.finished == [(0, "")]


def test_nothing_goes_back_to_an_envoy_that_has_left(envoy: Envoy) -> None:
    send(envoy)
    envoy.reset()
    before = all_answers(envoy)
    make_room(envoy, 100)
    assert all_answers(envoy) == before


def test_a_body_whose_decision_took_a_while_goes_back_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch, wire: object
) -> None:
    monkeypatch.setattr("ext_proc.wires.Recorder", Narrow)
    envoy = PatientEnvoy(Epp(make_pool()), LEAN)
    send(envoy, with_trailers=True)
    assert all_answers(envoy) == []
    envoy.decide()
    assert len(all_answers(envoy)) == Narrow.room
    make_room(envoy, 100)
    _, *body, trailers = all_answers(envoy)
    assert_whole(body, ends=False)
    assert trailers == CONTINUE_REQUEST_TRAILERS
