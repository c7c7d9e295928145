"""The reference's director tests at the gateway's end: requests that are served.

They look at results and error codes inside the reference; here the response that comes of these is
looked at.
"""

from pathlib import Path

from parity import plugins_of_cases
from parity.case import Case, Ours, Series
from parity.cases.http import total
from parity.envoy import Step
from parity.fixture import (
    FAIRNESS,
    HEAD,
    OBJECTS,
    REQUEST_ID,
    SETS_HEADERS,
    Facts,
    completion,
    merged,
    pod,
    raw,
    routed,
)
from parity.worlds import Pod, World

ONE = (pod(0, 0, 0.2),)
ADDRESS = "192.168.1.1:8000"
HEADERS = {"hi": "mom", "x-request-id": REQUEST_ID}
CHAT = {**HEADERS, ":path": "/v1/chat/completions"}
HELLO = raw(HEADERS, completion("hello", "my-model"))


def world(*plugins: str, pods: tuple[Pod, ...] = ONE, objects: str = OBJECTS) -> World:
    """Return servers under a configuration with these plugins, one line of YAML each."""
    lines = "".join(f"- {{{each}}}\n" for each in ("type: queue-scorer", *plugins))
    return World(pods, f"{HEAD}plugins:\n{lines}", objects)


def ours(class_name: str, name: str = "ours") -> str:
    """Return a plugin of these tests, as a line of YAML."""
    return f"type: 'file:{Path(plugins_of_cases.__file__)}:{class_name}', name: {name}"


PRE_REQUEST_FAILS = "pre-request plugin that fails"
GENERIC = (
    "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceModelRewrite\nmetadata: {name: any}\n"
    "spec: {rules: [{targets: [{modelRewrite: generic}]}]}\n"
)


def served(
    name: str,
    pods: World,
    steps: tuple[Step, ...],
    *,
    address: str = ADDRESS,
    body: bytes | None = None,
    counted: Series | None = None,
    more: Facts = ({}, {}),
    metadata: dict[str, object] | None = None,
    also: tuple[str, ...] = (),
) -> Case:
    counts: Facts = ({"metrics": {"request_total": 1.0}}, {}) if counted else ({}, {})
    reference, others = merged(routed(address, steps, body), counts, more)
    return Case(
        name=name,
        also=also,
        world=pods,
        steps=steps,
        metadata=metadata or {},
        series=(counted,) if counted else (),
        reference=reference,
        ours=others,
    )


def _passed_over(name: str, status: int, *plugins: str) -> Case:
    """Return a case in which pre-request plugins fail."""
    passed = {"status": Ours(0, PRE_REQUEST_FAILS)}
    return Case(
        name=name,
        world=world(*[ours(each, f"ours-{place}") for place, each in enumerate(plugins)]),
        steps=HELLO,
        reference={"grpc_status": "OK", "status": status},
        ours=passed,
        ours_in_compat=passed,
    )


def _flow(fairness_id: str) -> Series:
    return Series("request_total", (("fairness_id", fairness_id),))


AGENT = {**HEADERS, "x-session-affinity": "an-agent"}
OF_AN_AGENT = raw(AGENT, completion("hello", "my-model"))
IN_A_FLOW = raw({**HEADERS, FAIRNESS: "a-flow"}, completion("hello", "my-model"))
OF_AN_AGENT_IN_A_FLOW = raw({**AGENT, FAIRNESS: "a-flow"}, completion("hello", "my-model"))


DIRECTOR = (
    served(
        "director: completions",
        world(),
        HELLO,
        counted=total("my-model", "my-model", 0),
        also=("director: data producers", "candidates: nil metadata"),
    ),
    served(
        "director: chat",
        world(),
        raw(CHAT, b'{"model":"my-model","messages":[{"role":"user","content":"hello"}]}'),
        counted=total("my-model", "my-model", 0),
    ),
    served(
        "director: chat, several messages",
        world(),
        raw(
            CHAT,
            b'{"model":"my-model","messages":[{"role":"developer","content":"be brief"},'
            b'{"role":"user","content":"hello"}]}',
        ),
        counted=total("my-model", "my-model", 0),
    ),
    served(
        "director: fairness from the header",
        world(),
        IN_A_FLOW,
        counted=_flow("a-flow"),
    ),
    served("director: fairness by default", world(), HELLO, counted=_flow("default-flow")),
    served(
        "director: fairness from the agent's identity",
        world("type: agent-identity"),
        OF_AN_AGENT,
        counted=_flow("an-agent"),
    ),
    served(
        "director: fairness from the header before the agent's identity",
        world("type: agent-identity"),
        OF_AN_AGENT_IN_A_FLOW,
        counted=_flow("a-flow"),
    ),
    served(
        "director: a pre-request plugin adds a header",
        world(ours("HeaderAdding")),
        HELLO,
        more=(
            {
                "headers": {
                    "hi": "mom",
                    "x-request-id": REQUEST_ID,
                    "content-length": "70",
                    "x-added": "default/pod-0",
                }
            },
            {"headers": Ours({"x-added": "default/pod-0"}, SETS_HEADERS)},
        ),
    ),
    _passed_over("director: a pre-request plugin fails with a status", 412, "TypedFailing"),
    _passed_over("director: a pre-request plugin fails", 500, "UntypedFailing"),
    _passed_over(
        "director: several pre-request plugins fail with a status",
        *(500, "TypedFailing", "TypedFailing"),
    ),
    _passed_over(
        "director: several pre-request plugins fail, one with a status",
        *(500, "TypedFailing", "UntypedFailing"),
    ),
    served("director: admitted", world(ours("Allowing")), HELLO),
    served(
        "director: a generic rewrite supplies a model",
        world(objects=GENERIC),
        raw(HEADERS, b'{"model":"","prompt":"hello"}'),
        body=b'{"model":"generic","prompt":"hello"}',
        counted=total("", "generic", 0),
    ),
)
