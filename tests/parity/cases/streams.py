"""Streams that differ from those of the reference."""

from parity.case import Case, Ours
from parity.cases.http import ONE
from parity.envoy import Step
from parity.fixture import HEAD, REQUEST_ID, completion, raw, response
from parity.worlds import World

COUNT_TOKENS = raw(
    {":path": "/v1/messages/count_tokens", "x-request-id": REQUEST_ID},
    b'{"model":"my-model","messages":[{"role":"user","content":"hello"}]}',
)
ANTHROPIC = World(
    ONE.pods,
    HEAD + "plugins: [{type: queue-scorer}, {type: anthropic-parser}]\n"
    "requestHandler: {parsers: [{pluginRef: anthropic-parser}]}\n",
)
NOT_READ = "responses that nothing is read of (`count_tokens`)"


def _padded(body_bytes: int) -> tuple[Step, ...]:
    return raw({"x-request-id": REQUEST_ID}, completion("x" * body_bytes, "my-model"))


STREAMS = (
    Case(
        name="server: Skip closes the stream",
        world=ANTHROPIC,
        steps=COUNT_TOKENS + response({"content-type": "application/json"}, b'{"input_tokens":7}'),
        reference={
            "grpc_status": "OK",
            "status": 0,
            "destination": "192.168.1.1:8000",
            "pieces": ((COUNT_TOKENS[1].body, True),),
            "response_headers": None,
            "response_pieces": (),
        },
        ours={
            "response_headers": Ours({}, NOT_READ),
            "response_pieces": Ours(((b'{"input_tokens":7}', True),), NOT_READ),
        },
    ),
    Case(
        name="server: gRPC receive limit",
        world=ONE,
        steps=_padded(5 << 20),
        reference={"grpc_status": "RESOURCE_EXHAUSTED"},
        ours={"grpc_status": Ours("OK", "gRPC message limits")},
    ),
)
