"""Requests that the reference's hermetic tests see refused."""

from parity.case import Case, Ours
from parity.cases.http import FOR_SUBSETS, LORA, ONE, world
from parity.envoy import Step
from parity.fixture import (
    NO_ENDPOINTS,
    REQUEST_ID,
    Facts,
    Refusal,
    headers_only,
    llm,
    no_candidates,
    raw,
    refused,
)
from parity.worlds import World


def rejection(
    name: str,
    pods: World,
    steps: tuple[Step, ...],
    facts: Facts,
    *,
    also: tuple[str, ...] = (),
    subset: tuple[str, ...] | None = None,
    metadata: dict[str, object] | None = None,
    ours_in_compat: dict[str, Ours] | None = None,
) -> Case:
    return Case(
        name=name,
        also=also,
        world=pods,
        steps=steps,
        subset=subset,
        metadata=metadata or {},
        reference=facts[0],
        ours=facts[1],
        ours_in_compat=ours_in_compat or {},
    )


NO_MATCH = no_candidates(
    "the gateway restricts this request to 192.168.1.99:8000,"
    " and none of the 3 endpoints of the pool is one of them"
)
EMPTY_POOL = "request without a body (`GET /v1/models`)"
NOBODY = refused(
    Refusal(500, "Internal", "no pods available in datastore"),
    Refusal(
        *(503, "ServiceUnavailable"),
        "the pool has no endpoint: is discovery configured and running?",
        "candidates",
        NO_ENDPOINTS,
    ),
    status=EMPTY_POOL,
    drop_reason=EMPTY_POOL,
)

REFUSALS = (
    rejection(
        "http: subset, none of it",
        FOR_SUBSETS,
        llm("test2", "sql-lora", LORA),
        NO_MATCH,
        also=("message: subset no match", "candidates: none matches"),
        subset=("192.168.1.99:8000",),
    ),
    rejection(
        "http: no backend pods",
        world(),
        headers_only({"content-type": "application/json", "x-request-id": REQUEST_ID}),
        NOBODY,
        also=("message: header-only with no pods",),
    ),
    rejection(
        "http: missing model field",
        ONE,
        raw({"content-type": "application/json"}, b'{"prompt":"hello world"}'),
        refused(
            Refusal(400, "BadRequest", "model not found in request body"),
            Refusal(
                *(400, "BadRequest"),
                "model not found in request body: it must be a non-empty string",
                "parsing",
            ),
        ),
        also=("message: no model", "director: model missing"),
    ),
    rejection(
        "http: invalid json",
        ONE,
        raw({"hi": "mom"}, b"no healthy upstream"),
        refused(
            Refusal(
                *(400, "BadRequest"),
                "error unmarshaling request bodyMap: invalid character 'o' in literal null"
                " (expecting 'u')",
            ),
            Refusal(
                *(400, "BadRequest"),
                "the request body is not a JSON object that can be read:"
                " JSON is malformed: invalid character (byte 4)",
                "parsing",
            ),
        ),
        also=("message: bad JSON",),
        ours_in_compat={
            "body": Ours(
                "inference error: BadRequest - error unmarshaling request bodyMap:"
                " JSON is malformed: invalid character (byte 4)",
                "what is wrong with a JSON body",
            )
        },
    ),
)
