"""vLLM over gRPC: requests and responses in frames, their end in trailers."""

from epp.pb.vllm.grpc.engine.vllm_engine_pb2 import (
    EmbedRequest,
    GenerateComplete,
    GenerateRequest,
    GenerateResponse,
    GenerateStreamChunk,
    TokenizedInput,
)
from parity.case import Case, Series
from parity.cases.http import FOR_SUBSETS, total
from parity.cases.refusals import NO_MATCH, NOBODY
from parity.cases.responses import answered_with_trailers
from parity.envoy import Step
from parity.fixture import (
    HEAD,
    OBJECTIVE,
    OBJECTS,
    REQUEST_ID,
    Facts,
    headers_only,
    merged,
    pod,
    raw,
    response,
    routed,
)
from parity.worlds import Pod, World

CONFIG = HEAD + (
    "plugins:\n- type: queue-scorer\n- type: kv-cache-utilization-scorer\n"
    "- type: prefix-cache-scorer\n- type: lora-affinity-scorer\n- type: vllmgrpc-parser\n"
    "requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}\n"
)
SERVICE = "/vllm.grpc.engine.VllmEngine"
GRPC = {"content-type": "application/grpc"}


def frame(message: bytes) -> bytes:
    """Return an uncompressed gRPC frame."""
    return b"\0" + len(message).to_bytes(4) + message


def generate(text: str, *, stream: bool = False) -> bytes:
    """Return the body of a Generate call."""
    return frame(GenerateRequest(text=text, stream=stream).SerializeToString())


EMBED = frame(EmbedRequest(tokenized=TokenizedInput(input_ids=[1, 2, 3])).SerializeToString())
COMPLETE = frame(
    GenerateResponse(
        complete=GenerateComplete(prompt_tokens=7, completion_tokens=10)
    ).SerializeToString()
)
CHUNK = frame(GenerateResponse(chunk=GenerateStreamChunk(completion_tokens=1)).SerializeToString())


def call(method: str, *chunks: bytes, objective: str = "") -> tuple[Step, ...]:
    """Return a call of the engine."""
    headers = {":path": f"{SERVICE}/{method}", "x-request-id": REQUEST_ID}
    if objective:
        headers[OBJECTIVE] = objective
    return raw(headers, *chunks)


def world(*pods: Pod) -> World:
    """Return servers that are reached over gRPC."""
    return World(pods, CONFIG, OBJECTS)


THREE = world(pod(0, 3, 0.2), pod(1, 0, 0.1), pod(2, 10, 0.2))
SUBSETS = world(*FOR_SUBSETS.pods)
BUSY = world(pod(0, 6, 0.2), pod(1, 0, 0.85), pod(2, 10, 0.9))
ONE = world(pod(0, 4, 0.2))
PRIORITY_4 = "inference-objective-with-priority-4"


def _call(
    name: str,
    pods: World,
    steps: tuple[Step, ...],
    address: str,
    *,
    priority: int = 0,
    subset: tuple[str, ...] | None = None,
) -> Case:
    reference, ours = merged(routed(address, steps), ({"metrics": {"request_total": 1.0}}, {}))
    return Case(
        name=name,
        world=pods,
        steps=steps,
        subset=subset,
        series=(total("", "", priority),),
        reference=reference,
        ours=ours,
    )


def _response(
    name: str,
    request: tuple[Step, ...],
    *chunks: bytes,
    is_streamed: bool = False,
    more: Facts = ({}, {}),
    series: tuple[Series, ...] = (),
) -> Case:
    facts = answered_with_trailers(GRPC, *chunks, is_streamed=is_streamed)
    reference, ours = merged(facts, more)
    return Case(
        name=name,
        world=ONE,
        steps=request + response(GRPC, *chunks, trailers={"grpc-status": "0"}),
        series=series,
        reference=reference,
        ours=ours,
    )


TOKENS = tuple(Series(f"request_input_tokens_{part}") for part in ("count", "sum"))
SEVEN: Facts = (
    {"metrics": {"request_input_tokens_count": 1.0, "request_input_tokens_sum": 7.0}},
    {},
)

GRPC_CASES = (
    # queue .7/1/0, KV .8/.9/.8: the second.
    _call(
        "grpc: lower queue and kv cache, Generate",
        THREE,
        call("Generate", generate("test1"), objective=PRIORITY_4),
        "192.168.1.2:8000",
        priority=4,
    ),
    _call(
        "grpc: lower queue and kv cache, Embed",
        THREE,
        call("Embed", EMBED, objective=PRIORITY_4),
        "192.168.1.2:8000",
        priority=4,
    ),
    _call(
        "grpc: streaming Generate",
        THREE,
        call("Generate", generate("test1", stream=True), objective=PRIORITY_4),
        "192.168.1.2:8000",
        priority=4,
    ),
    # queue .4/1/0, KV .8/.15/.1: 1.2, 1.15 and .1.
    _call(
        "grpc: do not shed without an objective",
        BUSY,
        call("Generate", generate("test4")),
        "192.168.1.1:8000",
    ),
    _call(
        "grpc: frame over two body messages",
        THREE,
        call("Generate", generate("test6")[:7], generate("test6")[7:]),
        "192.168.1.2:8000",
    ),
    Case(
        name="grpc: no backend pods",
        world=world(),
        steps=headers_only({":path": f"{SERVICE}/Generate", "x-request-id": REQUEST_ID}),
        reference=NOBODY[0],
        ours=NOBODY[1],
    ),
    _call(
        "grpc: subset, best of it",
        SUBSETS,
        call("Generate", generate("test2")),
        "192.168.1.2:8000",
        subset=("192.168.1.1:8000", "192.168.1.2:8000", "192.168.1.3:8000"),
    ),
    _call(
        "grpc: subset, one of it",
        SUBSETS,
        call("Generate", generate("test2")),
        "192.168.1.3:8000",
        subset=("192.168.1.3:8000",),
    ),
    Case(
        name="grpc: subset, none of it",
        world=SUBSETS,
        steps=call("Generate", generate("test2")),
        subset=("192.168.1.99:8000",),
        reference=NO_MATCH[0],
        ours=NO_MATCH[1],
    ),
    _response(
        "grpc: response, multi-chunk",
        call("Generate", generate("test6")),
        COMPLETE[:4],
        COMPLETE[4:],
    ),
    _response(
        "grpc: response, invalid payload",
        call("Generate", generate("test6")),
        b"no healthy upstream",
    ),
    _response(
        "grpc: response, usage",
        call("Generate", generate("test6")),
        COMPLETE,
        more=SEVEN,
        series=TOKENS,
    ),
    _response(
        "grpc: response streaming",
        call("Generate", generate("test6", stream=True)),
        CHUNK,
        COMPLETE,
        is_streamed=True,
        more=SEVEN,
        series=TOKENS,
    ),
)
