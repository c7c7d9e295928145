"""Large bodies whose last bytes arrive in one read: the loop decides one per turn."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs
from test_straight_path import destinations, make_service

from epp.ext_proc import ExtProcService
from epp.ext_proc.service import METHOD
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import Director
from epp.transport import Http2Server
from tools.harness.ext_proc import FULL_DUPLEX, POST, echoed, http_headers
from tools.harness.raw_client import RawClient, Response, connected, data, fields, headers, message

CHUNK = b"x" * 400_000
CHUNKS = 3
"""Of a body: more than 1 MiB."""
STREAMS = range(1, 13, 2)
FRAME_BYTES = 16_384


def frames(stream_id: int, request: pb.ProcessingRequest) -> bytes:
    """Return the frames that a message takes."""
    sent = message(request.SerializeToString())
    cuts = range(0, len(sent), FRAME_BYTES)
    return b"".join(data(stream_id, sent[at : at + FRAME_BYTES]) for at in cuts)


def body(content: bytes, *, end: bool = False) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=content, end_of_stream=end))


async def begin(client: RawClient) -> None:
    """Send all of the requests but their ends."""
    config = pb.ProtocolConfiguration(
        request_body_mode=FULL_DUPLEX[0], response_body_mode=FULL_DUPLEX[1]
    )
    first = pb.ProcessingRequest(request_headers=http_headers(POST, False), protocol_config=config)
    for stream_id in STREAMS:
        client.send(headers(stream_id, fields(METHOD)), frames(stream_id, first))
        client.send(frames(stream_id, body(b'{"model":"m","prompt":"')))
        for _ in range(CHUNKS):
            client.send(frames(stream_id, body(CHUNK)))
            await client.round_trip()  # the windows are open again


def assert_routed(response: Response) -> None:
    """It says where the request goes, and gives all of its body back."""
    routed, *echoes = map(pb.ProcessingResponse.FromString, response.messages)
    (destination,) = destinations([routed])
    assert destination.startswith("10.0.0.")
    given_back, ends = echoed(echoes, "request_body")
    assert given_back == b'{"model":"m","prompt":"' + CHUNK * CHUNKS + b'"}'
    assert ends == [False] * (len(echoes) - 1) + [True]
    assert response.status == 0


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_large_bodies_that_end_at_once_take_turns(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided_in: list[int] = []
    turn = 0
    handle = Director.handle

    def noted(director: Director, **request: Any) -> Any:
        decided_in.append(turn)
        return handle(director, **request)

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(count_turns)

    async def test(service: ExtProcService) -> None:
        server = Http2Server({METHOD: service.opened}, host="127.0.0.1")
        port = await server.start()
        count_turns()
        async with connected(port) as client:
            await begin(client)
            assert decided_in == []
            client.send(*(frames(stream_id, body(b'"}', end=True)) for stream_id in STREAMS))
            await client.until(lambda: len(decided_in) == len(STREAMS))
            for stream_id in STREAMS:
                client.send(data(stream_id, end=True))
                assert_routed(await client.response(stream_id))
        await server.stop(0)

    monkeypatch.setattr(Director, "handle", noted)
    service = make_service()
    with capture_logs(), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(test(service))
    assert len(set(decided_in)) == len(decided_in) == len(STREAMS)
