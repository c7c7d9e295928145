"""The common fixture of the reference's hermetic tests, and the counterparts of its helpers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parity.case import Ours
from parity.envoy import DESTINATION, Step
from parity.worlds import Pod

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
CONFIG = HEAD + (
    "plugins:\n- type: queue-scorer\n- type: kv-cache-utilization-scorer\n"
    "- type: prefix-cache-scorer\n- type: lora-affinity-scorer\n- type: openai-parser\n"
    "schedulingProfiles:\n- name: default\n  plugins:\n"
    "  - {pluginRef: queue-scorer, weight: 1}\n"
    "  - {pluginRef: kv-cache-utilization-scorer, weight: 1}\n"
    "  - {pluginRef: prefix-cache-scorer, weight: 1}\n"
    "  - {pluginRef: lora-affinity-scorer, weight: 1}\n"
    "requestHandler: {parsers: [{pluginRef: openai-parser}]}\n"
)


def _objective(name: str, priority: int | None) -> str:
    spec = "{}" if priority is None else f"{{priority: {priority}}}"
    return (
        f"apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {{name: {name}}}\n"
        f"spec: {spec}\n---\n"
    )


OBJECTS = (
    _objective("sql-lora", 2)
    + _objective("sql-lora-sheddable", None)
    + _objective("my-model", 2)
    + _objective("direct-model", 2)
    + _objective("inference-objective-with-priority-4", 4)
    + "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceModelRewrite\nmetadata: {name: rewrite}\n"
    "spec:\n  rules:\n"
    "  - matches: [{model: {type: Exact, value: model-to-be-rewritten}}]\n"
    "    targets: [{modelRewrite: rewritten-model}]\n"
)

REQUEST_ID = "test-request-id"
OBJECTIVE = "x-llm-d-inference-objective"
REWRITE = "x-llm-d-model-name-rewrite"
FAIRNESS = "x-llm-d-inference-fairness-id"
NO_ENDPOINTS = "rejected-no-endpoints"
SATURATED = "rejected-saturated"

# The rows of docs/differences.md that many cases meet.
SETS_HEADERS = "headers in the response"
TAKES_OFF = "control headers of a client (flow, objective, rewrite, SLO, stages)"
PIECES = "bodies of responses given back to Envoy"
BODY = "error body"
RETRY_AFTER = "429 and 503"
NAMES_REQUEST = "id of the request in error responses"


def pod(index: int, waiting: int, kv_cache_usage: float, *adapters: str, role: str = "") -> Pod:
    """Return the reference's P(index, queue, kv, adapters…)."""
    return Pod(index, waiting, kv_cache_usage, tuple(sorted(adapters)), role)


def completion(prompt: str, model: str) -> bytes:
    """Return the body that the reference's helpers make."""
    return (f'{{"max_tokens":100,"model":"{model}","prompt":"{prompt}","temperature":0}}').encode()


def raw(headers: Mapping[str, str], *chunks: bytes) -> tuple[Step, ...]:
    """Return a request with these headers and the body in these chunks."""
    bodies = [Step("request_body", body=each) for each in chunks[:-1]]
    last = Step("request_body", body=chunks[-1], end=True)
    return (Step("request_headers", headers), *bodies, last)


def llm(prompt: str, model: str, target: str) -> tuple[Step, ...]:
    """Return a completion that names its objective and another model in headers."""
    headers = {"hi": "mom", "x-request-id": REQUEST_ID, OBJECTIVE: model, REWRITE: target}
    return raw(headers, completion(prompt, model))


def headers_only(headers: Mapping[str, str]) -> tuple[Step, ...]:
    """Return a request without a body."""
    return (Step("request_headers", headers, end=True),)


def response(
    headers: Mapping[str, str], *chunks: bytes, trailers: Mapping[str, str] | None = None
) -> tuple[Step, ...]:
    """Return a model server's response, ended by its last chunk or by trailers."""
    bodies = [Step("response_body", body=each) for each in chunks]
    head = Step("response_headers", {":status": "200", **headers})
    if trailers is not None:
        return (head, *bodies, Step("response_trailers", trailers))
    return (head, *bodies[:-1], Step("response_body", body=chunks[-1], end=True))


Facts = tuple[dict[str, object], dict[str, Ours]]
"""What the reference answers, and what is other here."""


def routed(address: str, steps: Sequence[Step], body: bytes | None = None) -> Facts:
    """Return what comes of a request that goes to ``address``.

    Args:
        address: The server's in the fixture.
        steps: What was sent.
        body: What is sent on if it is not what came.
    """
    sent = steps[0].headers
    chunks = [each.body for each in steps if each.kind == "request_body"]
    control = tuple(sorted({OBJECTIVE, REWRITE, FAIRNESS} & sent.keys()))
    joined = b"".join(chunks) if body is None else body
    headers = {key: value for key, value in sent.items() if key not in control}
    length = {"content-length": str(len(joined))}
    reference: dict[str, object] = {
        "grpc_status": "OK",
        "status": 0,
        "destination": address,
        "metadata": {"envoy.lb": {DESTINATION: address}},
        "clears_route_cache": True,
        "headers": {**headers, **length},
        "removed": (),
        "pieces": ((joined, True),),
    }
    length_header = length if body is not None and length.keys() <= sent.keys() else {}
    ours = {"headers": Ours(length_header, SETS_HEADERS)}
    if control:
        ours["removed"] = Ours(control, TAKES_OFF)
    return reference, ours


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response in the model server's place."""

    status: int
    code: str
    message: str
    stage: str = ""
    """What ours names besides."""
    reason: str = ""


def refused(reference: Refusal, ours: Refusal, **rows: str) -> Facts:
    """Return what comes of a request that is refused; ``rows`` are by fact, for what is other."""
    reference_facts: dict[str, object] = {
        "grpc_status": "OK",
        "status": reference.status,
        "drop_reason": reference.reason,
        "content_type": "",
        "retry_after": "",
        "names_request": False,
        "body": f"inference error: {reference.code} - {reference.message}",
        "pieces": (),
    }
    error = {
        "message": ours.message,
        "type": ours.code,
        "code": ours.status,
        "stage": ours.stage,
    }
    others = {
        "body": Ours(error, BODY),
        "content_type": Ours("application/json", BODY),
        "names_request": Ours(True, NAMES_REQUEST),
    }
    if ours.status in {429, 503}:
        others["retry_after"] = Ours("1", RETRY_AFTER)
    for fact, value in (("status", ours.status), ("drop_reason", ours.reason)):
        if reference_facts[fact] != value:
            others[fact] = Ours(value, rows[fact])
    return reference_facts, others


def no_candidates(message: str) -> Facts:
    """Return what comes of a request that may go nowhere; ``message`` is ours."""
    code = "ServiceUnavailable"
    theirs = "failed to find endpoint candidates for serving the request"
    return refused(
        Refusal(503, code, theirs, reason=NO_ENDPOINTS),
        Refusal(503, code, message, "candidates", NO_ENDPOINTS),
    )


def answered(headers: Mapping[str, str], *chunks: bytes, is_streamed: bool) -> Facts:
    """Return what comes of a response that ends with its body."""
    *pieces, last = [(each, False) for each in chunks]
    ended = (*pieces, (last[0], True))
    whole = ((b"".join(chunks), True),)
    added = {"x-went-into-resp-headers": "true", **headers}
    reference: dict[str, object] = {
        "grpc_status": "OK",
        "response_headers": added,
        "response_pieces": ended if is_streamed else whole,
    }
    ours = {"response_headers": Ours({}, SETS_HEADERS)}
    if ended != reference["response_pieces"]:
        ours["response_pieces"] = Ours(ended, PIECES)
    return reference, ours


def merged(*facts: Facts) -> Facts:
    """Return several facts as one."""
    reference: dict[str, object] = {}
    ours: dict[str, Ours] = {}
    for reference_facts, others in facts:
        reference |= reference_facts
        ours |= others
    return reference, ours
