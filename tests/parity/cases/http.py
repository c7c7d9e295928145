"""Completions over HTTP: the reference's hermetic tests of requests."""

from parity.case import Case, Series
from parity.envoy import DESTINATION, Step
from parity.fixture import (
    CONFIG,
    HEAD,
    OBJECTIVE,
    OBJECTS,
    REQUEST_ID,
    REWRITE,
    Facts,
    completion,
    headers_only,
    llm,
    merged,
    pod,
    raw,
    routed,
)
from parity.worlds import Pod, World

LORA = "sql-lora-1fdg2"
SHEDDABLE = "sql-lora-1fdg3"


def world(*pods: Pod) -> World:
    """Return servers under the common configuration."""
    return World(pods, CONFIG, OBJECTS)


def total(model: str, target: str, priority: int) -> Series:
    """Return the count of requests with these labels."""
    labels = {"model_name": model, "target_model_name": target, "priority": str(priority)}
    return Series("request_total", tuple(labels.items()))


def _route(
    name: str,
    pods: World,
    steps: tuple[Step, ...],
    address: str,
    body: bytes | None,
    *,
    counted: Series,
    also: tuple[str, ...] = (),
    subset: tuple[str, ...] | None = None,
    more: Facts = ({}, {}),
    level: Series | None = None,
) -> Case:
    counts = {counted.metric: 1.0}
    if level is not None:
        counts[level.metric] = 3.0
    reference, ours = merged(routed(address, steps, body), ({"metrics": counts}, {}), more)
    return Case(
        name=name,
        also=also,
        world=pods,
        steps=steps,
        subset=subset,
        series=(counted,) if level is None else (counted, level),
        reference=reference,
        ours=ours,
    )


THREE = world(pod(0, 3, 0.2), pod(1, 0, 0.1), pod(2, 10, 0.2))
ONE = world(pod(0, 0, 0.2, "foo", "bar"))
FOR_SUBSETS = world(pod(0, 0, 0.2, "foo"), pod(1, 0, 0.1, "foo", LORA), pod(2, 10, 0.2))
SPLIT_HEADERS = {"hi": "mom", "x-request-id": REQUEST_ID}
PASSTHROUGH = HEAD + (
    "plugins:\n- type: queue-scorer\n- type: kv-cache-utilization-scorer\n"
    "- type: passthrough-parser\n"
    "schedulingProfiles:\n- name: default\n"
    "  plugins: [{pluginRef: queue-scorer}, {pluginRef: kv-cache-utilization-scorer}]\n"
    "requestHandler: {parsers: [{pluginRef: passthrough-parser}]}\n"
)

HTTP = (
    # queue .7/1/0, KV .8/.9/.8: the second.
    _route(
        "http: select lower queue and kv cache",
        THREE,
        llm("test1", "my-model", "my-model-12345"),
        "192.168.1.2:8000",
        completion("test1", "my-model-12345"),
        counted=total("my-model", "my-model-12345", 2),
        also=("director: rewrite", "director: target model"),
        level=Series("ready_endpoints", is_level=True),
    ),
    _route(
        "message: model rewrite by header",
        THREE,
        raw(
            {**SPLIT_HEADERS, "content-length": "70", REWRITE: "my-model-12345"},
            completion("test1", "my-model"),
        ),
        "192.168.1.2:8000",
        completion("test1", "my-model-12345"),
        counted=total("my-model", "my-model-12345", 0),
    ),
    _route(
        "http: priorities are 0 without objects",
        World((pod(0, 3, 0.2), pod(1, 0, 0.1), pod(2, 10, 0.2)), CONFIG),
        llm("test1", "my-model", "my-model-12345"),
        "192.168.1.2:8000",
        completion("test1", "my-model-12345"),
        counted=total("my-model", "my-model-12345", 0),
    ),
    # queue 1/1/0, KV .8/.9/.8, LoRA 0/1/0: the second.
    _route(
        "http: select active lora, low queue",
        world(
            pod(0, 0, 0.2, "foo", "bar"), pod(1, 0, 0.1, "foo", LORA), pod(2, 10, 0.2, "foo", "bar")
        ),
        llm("test2", "sql-lora", LORA),
        "192.168.1.2:8000",
        completion("test2", LORA),
        counted=total("sql-lora", LORA, 2),
    ),
    # queue equal, KV .8/.6/.7, LoRA 0/1/0: the second.
    _route(
        "http: select lora despite higher kv cache",
        world(pod(0, 10, 0.2, "foo", "bar"), pod(1, 10, 0.4, "foo", LORA), pod(2, 10, 0.3, "foo")),
        llm("test3", "sql-lora", LORA),
        "192.168.1.2:8000",
        completion("test3", LORA),
        counted=total("sql-lora", LORA, 2),
        also=("message: LoRA affinity beats lower KV",),
    ),
    # queue .4/1/0, KV .8/.15/.1, LoRA 1/0/0: the first.
    _route(
        "http: do not shed requests by default",
        world(pod(0, 6, 0.2, "foo", "bar", LORA), pod(1, 0, 0.85, "foo"), pod(2, 10, 0.9, "foo")),
        llm("test4", "sql-lora", LORA),
        "192.168.1.1:8000",
        completion("test4", LORA),
        counted=total("sql-lora", LORA, 2),
        also=("message: priority 0 is never shed",),
    ),
    _route(
        "http: passthrough parser",
        World((pod(0, 3, 0.2), pod(1, 0, 0.1), pod(2, 10, 0.2)), PASSTHROUGH, OBJECTS),
        raw({**SPLIT_HEADERS, OBJECTIVE: "my-model"}, b"passthrough-parser"),
        "192.168.1.2:8000",
        None,
        counted=total("", "", 2),
    ),
    _route(
        "http: split body across chunks",
        world(pod(0, 4, 0.2, "foo", "bar", SHEDDABLE), pod(1, 4, 0.85, "foo", SHEDDABLE)),
        raw(
            {**SPLIT_HEADERS, OBJECTIVE: "sql-lora-sheddable", REWRITE: SHEDDABLE},
            b'{"max_tokens":100,"model":"sql-lo',
            b'ra-sheddable","prompt":"test6","temperature":0}',
        ),
        "192.168.1.1:8000",
        completion("test6", SHEDDABLE),
        counted=total("sql-lora-sheddable", SHEDDABLE, 0),
        also=("message: body in two chunks",),
    ),
    _route(
        "http: subset, best of it",
        FOR_SUBSETS,
        llm("test2", "sql-lora", LORA),
        "192.168.1.2:8000",
        completion("test2", LORA),
        counted=total("sql-lora", LORA, 2),
        also=("candidates: many match",),
        subset=("192.168.1.1:8000", "192.168.1.2:8000", "192.168.1.3:8000"),
    ),
    _route(
        "http: subset, one of it",
        FOR_SUBSETS,
        llm("test2", "sql-lora", LORA),
        "192.168.1.3:8000",
        completion("test2", LORA),
        counted=total("sql-lora", LORA, 2),
        also=("candidates: one matches",),
        subset=("192.168.1.3:8000",),
    ),
    _route(
        "http: model not in objectives",
        world(pod(0, 4, 0.2, "foo", "bar", SHEDDABLE)),
        raw(
            {**SPLIT_HEADERS, OBJECTIVE: "direct-model", REWRITE: "direct-model"},
            b'{"max_tokens":100,"model":"direct-',
            b'model","prompt":"test6","temperature":0}',
        ),
        "192.168.1.1:8000",
        None,
        counted=total("direct-model", "direct-model", 2),
    ),
    _route(
        "http: rewrite by an object",
        world(pod(0, 0, 0.1, "foo", "rewritten-model")),
        llm("test-rewrite", "model-to-be-rewritten", "model-to-be-rewritten"),
        "192.168.1.1:8000",
        completion("test-rewrite", "rewritten-model"),
        counted=total("model-to-be-rewritten", "rewritten-model", 0),
    ),
    Case(
        name="http: simple GET",
        also=("message: header-only GET",),
        world=ONE,
        steps=headers_only({"content-type": "text/event-stream", "status": "200"}),
        reference={
            "grpc_status": "OK",
            "status": 0,
            "destination": "192.168.1.1:8000",
            "metadata": {"envoy.lb": {DESTINATION: "192.168.1.1:8000"}},
        },
    ),
    _route(
        "endpoint scores: without the flag",
        FOR_SUBSETS,
        llm("test2", "sql-lora", LORA),
        "192.168.1.2:8000",
        completion("test2", LORA),
        counted=total("sql-lora", LORA, 2),
    ),
    _route(
        "endpoint scores: with the flag",
        World(FOR_SUBSETS.pods[:2], CONFIG, OBJECTS, emits_scores=True),
        llm("test2", "sql-lora", LORA),
        "192.168.1.2:8000",
        completion("test2", LORA),
        counted=total("sql-lora", LORA, 2),
        also=("director: scored endpoints",),
        more=(
            {
                "metadata": {
                    "envoy.lb": {
                        DESTINATION: "192.168.1.2:8000",
                        # queue 1, prefix 0, KV .8 and .9, LoRA 0 and 1.
                        f"{DESTINATION}-scores": {
                            "192.168.1.1:8000": 1.8,
                            "192.168.1.2:8000": 2.9,
                        },
                    }
                }
            },
            {},
        ),
    ),
)
