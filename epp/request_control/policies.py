"""Priority, flow and model name of a request, from its headers and the operator's objects.

A client can name an objective, which decides the priority, and a model other than the body's. The
operator's rewrite rule for the body's model overrides the client's header.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from epp.parsing import ParsedRequest
from epp.scheduling import bounded_id

# The Go EPP's names, each with its deprecated one; the new one wins.
FAIRNESS: Final = "x-llm-d-inference-fairness-id"
OLD_FAIRNESS: Final = "x-gateway-inference-fairness-id"
OBJECTIVE: Final = "x-llm-d-inference-objective"
OLD_OBJECTIVE: Final = "x-gateway-inference-objective"
REWRITE: Final = "x-llm-d-model-name-rewrite"
OLD_REWRITE: Final = "x-gateway-model-name-rewrite"

DEFAULT_FAIRNESS_ID: Final = "default-flow"


class RequestPolicies(Protocol):
    """The operator's objects: objectives and rules that rewrite model names."""

    def priority_of(self, objective: str) -> int:
        """Return the priority of the objective of that name; 0 if there is none."""

    def target_of(self, model: str) -> str | None:
        """Return the model that replaces ``model``; None if no rule matches."""

    def renames_all(self) -> bool:
        """Return whether a rule matches every model, and so also a request without a model."""


class OutcomeWatch(Protocol):
    """Counts outcomes, to detect whether a new configuration does harm."""

    def routed(self) -> None:
        """Count a request that was sent to an endpoint."""

    def refused(self, status: int) -> None:
        """Count a request that this EPP answered with an error."""

    def take_dry_run(self) -> bool:
        """Return whether a dry run on the previous configuration is wanted, and count it if so."""

    def judged(self, *, is_regression: bool, status: int, reason: str, error: str) -> None:
        """Record the result of a dry run.

        Args:
            is_regression: The previous configuration would have routed the request.
            status: HTTP status with which the request was refused.
            reason: Drop reason or code of that error.
            error: The error that it reports.
        """


class NoPolicies:
    """No objectives, no rules."""

    def priority_of(self, objective: str) -> int:
        return 0

    def target_of(self, model: str) -> str | None:
        return None

    def renames_all(self) -> bool:
        return False


def names_model(policies: RequestPolicies, headers: Mapping[str, str]) -> bool:
    """Return whether a header or a rule names the model, so that the body need not."""
    return bool(_rewrite_of(headers)) or policies.renames_all()


def apply_policies(policies: RequestPolicies, parsed: ParsedRequest) -> bytes | None:
    """Set priority, flow and target model; return the body to send on if it changed.

    Raises:
        ParseError: The model cannot be replaced in the body.
        ParserFailedError: The parser has a bug.
    """
    request = parsed.request
    headers = request.headers
    request.fairness_id = _flow_of(headers)
    objective = _objective_of(headers)
    if objective:
        request.priority = policies.priority_of(objective)
    if parsed.parser is None:
        return None
    model = request.model
    target = policies.target_of(model) or _rewrite_of(headers)
    if not target or target == model:
        return None
    rewritten = parsed.rewrite(target)
    if rewritten is not None:  # else the body keeps its model name
        request.target_model = target
    return rewritten


def priority_of(policies: RequestPolicies, headers: Mapping[str, str]) -> int:
    """Return the priority of a request with these headers, by its objective; 0 without one."""
    objective = _objective_of(headers)
    return policies.priority_of(objective) if objective else 0


def fairness_id(headers: Mapping[str, str]) -> str:
    """Return the fairness id that the client has set, or the default one."""
    return _flow_of(headers) or DEFAULT_FAIRNESS_ID


def _flow_of(headers: Mapping[str, str]) -> str:
    # Few requests have these headers, and `in` takes a third of what `get` takes; likewise below.
    if FAIRNESS not in headers and OLD_FAIRNESS not in headers:
        return ""
    flow = headers.get(FAIRNESS) or headers.get(OLD_FAIRNESS)
    return bounded_id(flow) if flow else ""


def _objective_of(headers: Mapping[str, str]) -> str | None:
    if OBJECTIVE not in headers and OLD_OBJECTIVE not in headers:
        return None
    return headers.get(OBJECTIVE) or headers.get(OLD_OBJECTIVE)


def _rewrite_of(headers: Mapping[str, str]) -> str | None:
    if REWRITE not in headers and OLD_REWRITE not in headers:
        return None
    return headers.get(REWRITE) or headers.get(OLD_REWRITE)
