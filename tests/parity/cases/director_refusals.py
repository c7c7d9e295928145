"""The reference's director tests and its table of errors: requests that are refused."""

from parity.case import Case, Ours
from parity.cases.director import CHAT, HEADERS, HELLO, ONE, ours, world
from parity.cases.refusals import rejection
from parity.fixture import (
    HEAD,
    NO_ENDPOINTS,
    OBJECTIVE,
    REQUEST_ID,
    SATURATED,
    Refusal,
    completion,
    no_candidates,
    pod,
    raw,
    refused,
)
from parity.worlds import World

FULL = (pod(0, 10, 0.2),)
HANDLER_FAILS = "profile handler that fails"
NO_PROFILE = "header 'EPP-Profile' asks for profile 'three'; there are: 'one', 'two'"
FAULT = f"the endpoint picker failed on this request; its log names request {REQUEST_ID}"
BATCH = (
    "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: batch}\n"
    "spec: {priority: -1}\n"
)

DIRECTOR_REFUSALS = (
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
                "the pool is full: 'utilization-detector' reports a saturation of 2.00, where 1.00"
                " is full; the request is sheddable (priority -1)",
                "admission",
                SATURATED,
            ),
            drop_reason="sheddable request to a full pool",
        ),
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
                "the screeners 'ours' excluded all 1 endpoints for this request",
                "candidates",
                NO_ENDPOINTS,
            ),
        ),
    ),
    rejection(
        "director: no candidates",
        world(pods=()),
        HELLO,
        no_candidates("the pool has no endpoint: is discovery configured and running?"),
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
