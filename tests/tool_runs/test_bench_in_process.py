"""The whole path in process: every request is decided before its response comes."""

import pytest

from epp.admin import ExplainSettings
from epp.app import App
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control.body_queue import LONG_BODY_BYTES
from epp.request_control.body_work import SHORT_BODY_BYTES
from tools.bench import wire_bytes
from tools.bench.gateways import Reads
from tools.bench.in_process import new_app, warmed
from tools.harness.ext_proc import ADAPTIVE, http_headers


def recorded(prompt_bytes: int) -> Reads:
    """Return the messages of a request in adaptive mode, as if Envoy had sent them."""
    asked = {":method": "POST", ":path": "/v1/completions", "x-request-id": "r"}
    config = pb.ProtocolConfiguration(request_body_mode=ADAPTIVE[0], response_body_mode=ADAPTIVE[1])
    body = b'{"model":"bench","prompt":"%b"}' % (b"x" * prompt_bytes)
    messages = (
        pb.ProcessingRequest(request_headers=http_headers(asked, False), protocol_config=config),
        pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)),
        pb.ProcessingRequest(response_headers=http_headers({":status": "200"}, False)),
    )
    return [[message.SerializeToString()] for message in messages]


@pytest.fixture
def app() -> App:
    return new_app(explain=ExplainSettings(explain_rate=0.0))


@pytest.mark.parametrize(
    "prompt_bytes",
    [
        pytest.param(100, id="at once"),
        pytest.param(SHORT_BODY_BYTES, id="in its turn"),
        pytest.param(LONG_BODY_BYTES, id="in a later turn"),
    ],
)
async def test_each_request_is_decided_before_its_response_comes(
    app: App, prompt_bytes: int
) -> None:
    reads = recorded(prompt_bytes)
    connection = await warmed(app, reads)
    ring = app.pool.explanations.ring
    warming = len(ring)
    await connection.feed(connection.prepared(list(wire_bytes.distinct(reads, 0, 4))))
    decisions = list(ring)
    assert len(decisions) == warming + 4
    assert all(each.endpoint and each.refusal is None for each in decisions)
