"""A request without waits needs no task, no future and no further turn of the loop.

That is the whole path with the default configuration: bytes of HTTP/2 in, the director's replies
out.
"""

import time
from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs
from transport.counting_loop import CountingLoop, run_counting

from epp.app import App, ServeSettings
from epp.config import DEFAULT_CONFIG, load_text
from epp.data_layer.plugins import EndpointSpec
from epp.ext_proc import ExtProcService
from epp.ext_proc.service import METHOD
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.scheduling import EndpointMetrics
from tools.harness.ext_proc import ADAPTIVE, FULL_DUPLEX, Modes, http_headers, set_headers
from tools.harness.in_memory import InMemory, connect
from tools.harness.raw_client import data, fields, headers, message, reset

REQUESTS = 1000
CHUNKS = 3
DESTINATION = "x-gateway-destination-endpoint"
RESPONSE = {":status": "200", "content-type": "text/event-stream"}


def make_service(endpoints: int = 10) -> ExtProcService:
    """The service of a whole EPP whose endpoints were scraped just now."""
    addresses = [f"10.0.0.{n + 1}:8000" for n in range(endpoints)]
    app = App(
        ServeSettings(
            config=load_text(DEFAULT_CONFIG, "default"),
            endpoints=tuple(addresses),
        )
    )
    specs = [EndpointSpec(f"default/server-{n}", each) for n, each in enumerate(addresses)]
    app.pool.store.replace_endpoints("test", specs)
    now = time.monotonic()
    for number, endpoint in enumerate(app.pool.store.snapshot):
        page = EndpointMetrics(
            waiting_requests=number % 5,
            running_requests=number % 7,
            kv_cache_usage=number / 20,
            requested_at=now,
        )
        endpoint.metrics = page
        endpoint.load.observe(
            waiting=page.waiting_requests,
            running=page.running_requests,
            kv_cache_usage=page.kv_cache_usage,
            requested_at=now,
        )
    return app.service


def body(number: int) -> bytes:
    return b'{"model":"m","prompt":"request %d %s","stream":true}' % (number, b"x" * 500)


def conversation(number: int, modes: Modes) -> list[pb.ProcessingRequest]:
    """What Envoy sends in the course of one request."""
    asked = {
        ":method": "POST",
        ":path": "/v1/completions",
        ":authority": "localhost",
        "content-type": "application/json",
        "x-request-id": f"r-{number}",
    }
    config = pb.ProtocolConfiguration(request_body_mode=modes[0], response_body_mode=modes[1])
    chunks = [
        pb.HttpBody(body=b"data: %d\n\n" % n, end_of_stream=n == CHUNKS - 1) for n in range(CHUNKS)
    ]
    return [
        pb.ProcessingRequest(request_headers=http_headers(asked, False), protocol_config=config),
        pb.ProcessingRequest(request_body=pb.HttpBody(body=body(number), end_of_stream=True)),
        pb.ProcessingRequest(response_headers=http_headers(RESPONSE, False)),
        *(pb.ProcessingRequest(response_body=chunk) for chunk in chunks),
    ]


def replies(client: InMemory, stream_id: int) -> Sequence[pb.ProcessingResponse]:
    return [pb.ProcessingResponse.FromString(each) for each in client.streams[stream_id].messages]


def destinations(given: Sequence[pb.ProcessingResponse]) -> list[str]:
    """The endpoints that replies route to."""
    found = []
    for reply in given:
        kind = reply.WhichOneof("response") or ""
        mutation: Mapping[str, str] = set_headers(getattr(reply, kind).response)
        if DESTINATION in mutation:
            found.append(mutation[DESTINATION])
    return found


@pytest.mark.parametrize("modes", [ADAPTIVE, FULL_DUPLEX], ids=["adaptive", "full duplex"])
def test_requests_with_the_default_configuration_ask_the_loop_for_nothing(modes: Modes) -> None:
    async def test(loop: CountingLoop) -> None:
        service = make_service()
        client = connect({METHOD: service.opened}, loop=loop)
        ids = range(1, 2 * REQUESTS, 2)
        given = fields(METHOD)
        reads = []
        for number, stream_id in enumerate(ids):
            first, *others = conversation(number, modes)
            frames = [data(stream_id, message(each.SerializeToString())) for each in others]
            frames.insert(
                0, headers(stream_id, given) + data(stream_id, message(first.SerializeToString()))
            )
            # Envoy ends each stream like this.
            reads.append([*frames, reset(stream_id)])
        with loop.watched() as asked, capture_logs():
            for frames in reads:
                for read in frames:
                    client.protocol.data_received(read)
        assert asked == {}
        client.read()
        assert client.goaways == []
        assert service.open_streams == set()
        assert client.server.open_streams == 0
        for stream_id in ids:
            got = replies(client, stream_id)
            (destination,) = destinations(got)
            assert destination.startswith("10.0.0.")
            assert got[-1].WhichOneof("response") == "response_body"

    run_counting(test)
