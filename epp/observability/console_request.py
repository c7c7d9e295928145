"""The canonical line of a request on a terminal: at most ten short fields, the usual ones first."""

from collections.abc import Mapping
from typing import Any, Final

MAX_FIELDS: Final = 10

_RANKS: Final[Mapping[str, int]] = {
    name: rank
    for rank, name in enumerate(
        (
            *("status", "endpoint", "model", "duration", "id"),
            *("outcome", "reason", "error", "stage", "forced", "queued", "failed_producers"),
            *("load", "decision", "tokens", "stages", "priority", "fairness_id"),
            *("age", "pool", "shadow", "stream", "trace_id"),
        )
    )
}
"""Which fields are shown if there are too many: those of low rank."""
_PLACES: Final[Mapping[str, int]] = {
    name: place
    for place, name in enumerate(
        (
            *("status", "outcome", "reason", "stage", "error", "endpoint", "model", "forced"),
            *("queued", "load", "age", "decision", "duration", "tokens", "priority"),
            *("fairness_id", "stages", "failed_producers", "shadow", "stream", "pool"),
        )
    )
}
"""Their order on the line; others follow, then ``more`` and the id."""
_LAST: Final = 1000

_DEFAULT_NAMESPACE: Final = "default/"
_MAX_ID_CHARS: Final = 16
_SHORT_ID_CHARS: Final = 8
"""Characters shown of a longer id: enough to find the request in the log of another process."""
_FRESH_SECONDS: Final = 0.2
"""Age of an endpoint's metrics up to which it is not shown."""
_FEW_SECONDS: Final = 0.01
"""Times below have two digits, times above whole milliseconds."""
_USUAL_OUTCOMES = frozenset({"ended", "completed", "refused"})
"""Outcomes that are not shown, because the status implies them."""


def short_fields(event: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields of a request's line with short names, in the order to show them.

    If there are more than :data:`MAX_FIELDS`, the last but one, ``more``, names those left out.
    """
    fields = _shortened({key: value for key, value in event.items() if value is not None})
    shown = sorted(fields, key=lambda name: _RANKS.get(name, _LAST))
    left_out: list[str] = []
    if len(shown) > MAX_FIELDS:
        shown, left_out = shown[: MAX_FIELDS - 1], shown[MAX_FIELDS - 1 :]
    request_id = {"id": fields["id"]} if "id" in fields else {}
    shown.sort(key=lambda name: _PLACES.get(name, _LAST))
    more = {"more": ",".join(left_out)} if left_out else {}
    return {name: fields[name] for name in shown if name != "id"} | more | request_id


def _shortened(rest: dict[str, Any]) -> dict[str, object]:
    """Return all informative fields, with short names and values."""
    fields: dict[str, object] = {}
    if "request_id" in rest:
        fields["id"] = _short_id(rest.pop("request_id"))
    if "endpoint" in rest:
        rest.pop("address", None)
        fields["endpoint"] = str(rest.pop("endpoint")).removeprefix(_DEFAULT_NAMESPACE)
    model, target = rest.pop("model", ""), rest.pop("target_model", "")
    fields["model"] = f"{model}->{target}" if target and target != model else model
    load = [rest.pop(f"{name}_requests", None) for name in ("waiting", "running")]
    usage = rest.pop("kv_cache_usage", None)
    if None not in load and usage is not None:
        fields["load"] = f"{load[0]:.0f}+{load[1]:.0f},{usage:.0%}"
    tokens = rest.pop("prompt_tokens", None), rest.pop("completion_tokens", None)
    if tokens != (None, None):
        fields["tokens"] = "+".join("?" if count is None else str(count) for count in tokens)
    age = rest.pop("metrics_age_seconds", 0.0)
    if age >= _FRESH_SECONDS:
        fields["age"] = _time(age)
    if rest.get("outcome") in _USUAL_OUTCOMES:
        del rest["outcome"]
    if not rest.get("stream"):
        rest.pop("stream", None)
    rest.pop("body_bytes", None)
    for key, value in rest.items():
        is_time = key.endswith("_seconds") and isinstance(value, int | float)
        fields[key.removesuffix("_seconds")] = _time(value) if is_time else value
    return fields


def _time(seconds: float) -> str:
    if abs(seconds) < _FEW_SECONDS:
        return f"{seconds * 1000:.2g}ms"
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s"


def _short_id(request_id: object) -> object:
    if not isinstance(request_id, str) or len(request_id) <= _MAX_ID_CHARS:
        return request_id
    return request_id[:_SHORT_ID_CHARS]
