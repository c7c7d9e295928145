"""What the reference's director tests ask for, at the gateway's end of it.

They look at results and error codes inside the reference; here the answer that comes of these is
looked at.
"""

from pathlib import Path

from parity import plugins_of_cases
from parity.case import Case, Ours, Series
from parity.cases.http import total
from parity.cases.refusals import rejection
from parity.envoy import SUBSET_KEY, SUBSET_NAMESPACE, Step
from parity.fixture import (
    FAIRNESS,
    HEAD,
    NO_ENDPOINTS,
    OBJECTIVE,
    OBJECTS,
    REQUEST_ID,
    SATURATED,
    SETS_HEADERS,
    Facts,
    Refusal,
    completion,
    merged,
    pod,
    raw,
    refused,
    routed,
)
from parity.worlds import Pod, World

ONE = (pod(0, 0, 0.2),)
TWO = (pod(0, 3, 0.2), pod(1, 0, 0.1))
FULL = (pod(0, 10, 0.2),)
ADDRESS = "192.168.1.1:8000"
BATCH = (
    "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: batch}\n"
    "spec: {priority: -1}\n"
)
GENERIC = (
    "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceModelRewrite\nmetadata: {name: any}\n"
    "spec: {rules: [{targets: [{modelRewrite: generic}]}]}\n"
)
HEADERS = {"hi": "mom", "x-request-id": REQUEST_ID}
CHAT = {**HEADERS, ":path": "/v1/chat/completions"}
HELLO = raw(HEADERS, completion("hello", "my-model"))

PRE_REQUEST_FAILS = "pre-request plugin that fails"
HANDLER_FAILS = "profile handler that fails"
NO_PROFILE = "header 'EPP-Profile' asks for profile 'three'; there are: 'one', 'two'"
FAULT = f"the endpoint picker failed on this request; its log names request {REQUEST_ID}"


def world(*plugins: str, pods: tuple[Pod, ...] = ONE, objects: str = OBJECTS) -> World:
    """Return servers under a configuration with these plugins, one line of YAML each."""
    lines = "".join(f"- {{{each}}}\n" for each in ("type: queue-scorer", *plugins))
    return World(pods, f"{HEAD}plugins:\n{lines}", objects)


def ours(class_name: str, name: str = "ours") -> str:
    """Return a plugin of these tests, as a line of YAML."""
    return f"type: 'file:{Path(plugins_of_cases.__file__)}:{class_name}', name: {name}"


def _served(
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


def _hint(value: object) -> dict[str, object]:
    return {SUBSET_NAMESPACE: {SUBSET_KEY: value}}


NOBODY_NAMED = refused(
    Refusal(
        *(503, "ServiceUnavailable"),
        "failed to find endpoint candidates for serving the request",
        reason=NO_ENDPOINTS,
    ),
    Refusal(
        *(503, "ServiceUnavailable"),
        "the gateway lets this request go to nobody, and none of the 2 endpoints of the pool is"
        " one of them",
        "candidates",
        NO_ENDPOINTS,
    ),
)
POOL = world(pods=TWO)
NO_FILTER = World(TWO, POOL.config, follows_subset=False)

DIRECTOR = (
    _served(
        "director: completions",
        world(),
        HELLO,
        counted=total("my-model", "my-model", 0),
        also=("director: data producers", "candidates: nil metadata"),
    ),
    _served(
        "director: chat",
        world(),
        raw(CHAT, b'{"model":"my-model","messages":[{"role":"user","content":"hello"}]}'),
        counted=total("my-model", "my-model", 0),
    ),
    _served(
        "director: chat, several messages",
        world(),
        raw(
            CHAT,
            b'{"model":"my-model","messages":[{"role":"developer","content":"be brief"},'
            b'{"role":"user","content":"hello"}]}',
        ),
        counted=total("my-model", "my-model", 0),
    ),
    _served(
        "director: fairness from the header",
        world(),
        IN_A_FLOW,
        counted=_flow("a-flow"),
    ),
    _served("director: fairness by default", world(), HELLO, counted=_flow("default-flow")),
    _served(
        "director: fairness from the agent's identity",
        world("type: agent-identity"),
        OF_AN_AGENT,
        counted=_flow("an-agent"),
    ),
    _served(
        "director: fairness from the header before the agent's identity",
        world("type: agent-identity"),
        OF_AN_AGENT_IN_A_FLOW,
        counted=_flow("a-flow"),
    ),
    _served(
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
    _served("director: admitted", world(ours("Allowing")), HELLO),
    rejection(
        "director: denied",
        world(ours("Denying")),
        HELLO,
        refused(
            Refusal(500, "Internal", "request cannot be admitted: denied by a plugin"),
            Refusal(429, "ResourceExhausted", "denied by a plugin", "admission", SATURATED),
            status="admitter's denial",
            drop_reason="admitter's denial",
        ),
    ),
    rejection(
        "director: admission rejects",
        world(pods=FULL, objects=BATCH),
        raw({**HEADERS, OBJECTIVE: "batch"}, completion("hello", "my-model")),
        refused(
            Refusal(429, "ResourceExhausted", "system saturated, sheddable request dropped"),
            Refusal(
                *(429, "ResourceExhausted"),
                "the pool is full, its saturation is 2.00 (1.00 is full, by"
                " 'utilization-detector'), and the request's priority, -1, lets it be turned away",
                "admission",
                SATURATED,
            ),
            drop_reason="sheddable request to a full pool",
        ),
    ),
    _served(
        "director: a generic rewrite supplies a model",
        world(objects=GENERIC),
        raw(HEADERS, b'{"model":"","prompt":"hello"}'),
        body=b'{"model":"generic","prompt":"hello"}',
        counted=total("", "generic", 0),
    ),
    rejection(
        "director: prompt missing",
        world(),
        raw(HEADERS, b'{"model":"my-model"}'),
        refused(
            Refusal(*(400, "BadRequest"), "invalid completions request: must have prompt field"),
            Refusal(*(400, "BadRequest"), "the request body must have a field 'prompt'", "parsing"),
        ),
    ),
    rejection(
        "director: messages missing",
        world(),
        raw(CHAT, b'{"model":"my-model"}'),
        refused(
            Refusal(
                *(400, "BadRequest"),
                "invalid chat completions request: must have valid messages field",
            ),
            Refusal(
                *(400, "BadRequest"), "the request body must have a field 'messages'", "parsing"
            ),
        ),
    ),
    Case(
        name="director: empty messages",
        world=world(),
        steps=raw(CHAT, b'{"model":"my-model","messages":[]}'),
        reference={"grpc_status": "OK", "status": 400},
        ours={"status": Ours(0, "chat with `messages: []`")},
        ours_in_compat={"status": Ours(0, "chat with `messages: []`")},
    ),
    rejection(
        "director: screeners leave nobody",
        world(ours("Hiding")),
        HELLO,
        refused(
            Refusal(
                *(503, "ServiceUnavailable"),
                "screeners eliminated all endpoint candidates",
                reason=NO_ENDPOINTS,
            ),
            Refusal(
                *(503, "ServiceUnavailable"),
                "this request may see none of the 1 endpoints (screened by 'ours')",
                "candidates",
                NO_ENDPOINTS,
            ),
        ),
    ),
    rejection(
        "director: no candidates",
        world(pods=()),
        HELLO,
        refused(
            Refusal(
                *(503, "ServiceUnavailable"),
                "failed to find endpoint candidates for serving the request",
                reason=NO_ENDPOINTS,
            ),
            Refusal(
                *(503, "ServiceUnavailable"),
                "the pool has no endpoint: is discovery configured and running?",
                "candidates",
                NO_ENDPOINTS,
            ),
        ),
    ),
    rejection(
        "director: scheduler error with a status",
        world("type: prefill-filter"),
        HELLO,
        refused(
            Refusal(
                *(429, "ResourceExhausted"),
                "no endpoints available for the given request",
                reason=SATURATED,
            ),
            Refusal(
                *(429, "ResourceExhausted"),
                "profile 'default': filters removed all 1 endpoints"
                " (prefill-filter removed default/pod-0)",
                "scheduling",
                SATURATED,
            ),
        ),
        also=("errors: all endpoints filtered",),
    ),
    rejection(
        "director: scheduler error",
        world(ours("FailingHandler")),
        HELLO,
        refused(
            Refusal(
                *(429, "ResourceExhausted"),
                f"failed to find target endpoint: {FAULT}",
            ),
            Refusal(500, "Internal", FAULT, "request"),
            status=HANDLER_FAILS,
        ),
    ),
    Case(
        name="director: no result",
        world=world(ours("EmptyHandler")),
        steps=HELLO,
        reference={"grpc_status": "OK", "status": 500},
        ours_in_compat={"status": Ours(429, HANDLER_FAILS)},
    ),
    _served(
        "candidates: empty metadata",
        POOL,
        HELLO,
        address="192.168.1.2:8000",
        metadata={SUBSET_NAMESPACE: {}},
    ),
    rejection("candidates: empty list", POOL, HELLO, NOBODY_NAMED, metadata=_hint([])),
    rejection("candidates: no texts", POOL, HELLO, NOBODY_NAMED, metadata=_hint([1, 2])),
    *[
        _served(
            f"candidates: filter off, {title}",
            NO_FILTER,
            HELLO,
            address="192.168.1.2:8000",
            metadata=_hint(value),
        )
        for title, value in (
            ("one named", ["192.168.1.1:8000"]),
            ("nobody named", []),
            ("one named that is not there", ["192.168.1.99:8000"]),
        )
    ],
    Case(
        name="candidates: a text with commas",
        world=POOL,
        steps=HELLO,
        metadata=_hint("192.168.1.98:8000,192.168.1.99:8000"),
        reference={"grpc_status": "OK", "status": 0},
        ours={"status": Ours(503, "subset hint")},
        ours_in_compat={"status": Ours(503, "subset hint")},
    ),
    rejection(
        "errors: no parser for the path",
        World(
            ONE,
            HEAD + "plugins: [{type: openai-parser}]\n"
            "requestHandler: {parsers: [{pluginRef: openai-parser}]}\n",
        ),
        raw({**HEADERS, ":path": "/v1/rerank"}, b"{}"),
        refused(
            Refusal(400, "BadRequest", "no parser registered matching path suffix for: /v1/rerank"),
            Refusal(
                *(400, "BadRequest"),
                "no parser registered matching path suffix for: /v1/rerank",
                "parsing",
            ),
        ),
    ),
    rejection(
        "errors: another failure of the scheduler",
        World(
            ONE,
            HEAD + "plugins: [{type: header-profile-handler, parameters: {defaultProfile:"
            " one}}, {type: queue-scorer}]\nschedulingProfiles:\n"
            "- {name: one, plugins: [{pluginRef: queue-scorer}]}\n"
            "- {name: two, plugins: [{pluginRef: queue-scorer}]}\n",
        ),
        raw({**HEADERS, "epp-profile": "three"}, completion("hello", "my-model")),
        refused(
            Refusal(*(429, "ResourceExhausted"), f"failed to find target endpoint: {NO_PROFILE}"),
            Refusal(400, "BadRequest", NO_PROFILE, "scheduling"),
            status="`header-profile-handler`: the header names a profile that is not there",
        ),
    ),
)
