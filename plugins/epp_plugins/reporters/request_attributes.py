"""``request-attribute-reporter``: sends the gateway a number that is computed from the usage.

At the end of the response the gateway receives dynamic metadata: ``key.name`` in the namespace
``key.namespace`` is the value of ``expression``, truncated to an integer. ``expression`` and
``condition`` are CEL (Common Expression Language). They can read one variable::

    usage.prompt_tokens
    usage.completion_tokens
    usage.total_tokens                          # the sum of both
    usage.prompt_tokens_details.cached_tokens   # 0 if the response omits it

The numbers are doubles, as in the Go EPP, where ``usage.prompt_tokens + 1`` fails because CEL
does not mix doubles and integers. Here such an expression is evaluated again with integers. Nothing
is reported if ``condition`` is not true, if an expression fails, if its value is not a 64-bit
number, or if the response has no usage; the counter ``request_attribute_reports_total`` counts by
``outcome`` (``reported``, ``skipped``, ``failed``). A name other than ``usage`` is refused when the
configuration is loaded.

The response body must pass through the endpoint picker. In adaptive mode the plugin requests the
body of each response that has usage, which costs a message per chunk; in lean mode nothing is
reported. A streamed response has usage if the client requests it (``stream_options``). The gateway
must accept the namespace: ``metadata_options.receiving_namespaces`` of Envoy's filter.

The Go EPP does not specify ``usage`` for a response without it, nor the meaning of the value -1:
here nothing is reported without usage, and -1 is an ordinary number.

Reads:  the usage of the response.
Writes: dynamic metadata.
Example::

    plugins:
      - type: request-attribute-reporter
        parameters:
          attributes:
            - key: {namespace: envoy.lb, name: x-gateway-inference-request-cost}
              expression: usage.prompt_tokens + 4.0 * usage.completion_tokens
              condition: has(usage.completion_tokens)
"""

import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import msgspec

from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control.plugins import ResponseFacts, ResponseReporter, Usage
from epp.scheduling import CycleState, Endpoint, LLMRequest

if TYPE_CHECKING:
    from cel import Context, Program

_DEFAULT_NAMESPACE: Final = "envoy.lb"
_MAX_CHARS: Final = 4096
"""Maximum characters of an expression: the CEL parser fails badly on a fault beyond column
65535."""
_MAX_VALUE: Final = 2**63
_DETAILS: Final = "prompt_tokens_details"
# The library lists the names that a macro binds among the variables.
_has_macro = re.compile(r"\.\s*(?:all|exists|exists_one|filter|map)\s*\(").search

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_CHARS)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A part of the parameters."""


class Key(_Section, frozen=True):
    """The place of the value in the dynamic metadata."""

    name: Text
    """Key of the value in the namespace."""
    namespace: str = _DEFAULT_NAMESPACE
    """Namespace of the dynamic metadata; "" for ``envoy.lb``."""


class Attribute(_Section, frozen=True):
    """A reported number."""

    key: Key
    """The place of the value in the dynamic metadata."""
    expression: Text
    """CEL expression whose value, a number, is reported."""
    condition: Annotated[str, msgspec.Meta(max_length=_MAX_CHARS)] = ""
    """CEL expression that is true for responses to report; "" for all."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``request-attribute-reporter``."""

    attributes: Annotated[tuple[Attribute, ...], msgspec.Meta(min_length=1, max_length=1)]
    """The reported numbers; exactly one entry."""


class RequestAttributeReporter(ResponseReporter):
    """Reports a number computed from the usage of each response."""

    type: ClassVar[str] = "request-attribute-reporter"

    def __init__(
        self, name: str, params: Params, *, metrics: PluginMetrics = NO_PLUGIN_METRICS
    ) -> None:
        self.name = name
        (attribute,) = params.attributes
        self._namespace = attribute.key.namespace or _DEFAULT_NAMESPACE
        self._key = attribute.key.name
        self._expression = _compiled("expression", attribute.expression)
        self._condition = (
            _compiled("condition", attribute.condition) if attribute.condition.strip() else None
        )
        # Converting the details takes half of the time, and few expressions use them.
        self._has_details = _DETAILS in attribute.expression + attribute.condition
        self._reports = metrics.counter(
            self,
            "request_attribute_reports_total",
            "Responses whose attribute was computed for the gateway.",
            ["outcome"],
        )

    def report_response(
        self, request: LLMRequest, usage: Usage | None, served_by: Endpoint, state: CycleState
    ) -> ResponseFacts:
        if usage is None:
            self._reports.inc("skipped")
            return {}
        try:
            values = _Values(usage, has_details=self._has_details)
            if self._condition is not None and values.of(self._condition) is not True:
                self._reports.inc("skipped")
                return {}
            value = values.of(self._expression)
        except _EVALUATION_FAULTS:
            self._reports.inc("failed")
            return {}
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not -_MAX_VALUE <= value < _MAX_VALUE
        ):
            self._reports.inc("failed")
            return {}
        self._reports.inc("reported")
        return {self._namespace: {self._key: int(value)}}


# The library raises these for CEL errors: a missing field, incompatible types, a division by zero,
# an overflow, an unknown function.
_EVALUATION_FAULTS = (LookupError, TypeError, ArithmeticError, ValueError, RuntimeError)


def _compiled(field: str, text: str) -> "Program":
    """Return the program of an expression.

    Raises:
        ValueError: The text is not valid CEL, or has a variable other than ``usage``.
    """
    # Imported late: it takes 0.2 s, and most configurations have no expression.
    import cel  # noqa: PLC0415

    where = f"attributes[0].{field}"
    try:
        program = cel.compile(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    unknown = [name for name in program.variables() if name != "usage"]
    if unknown and not _has_macro(text):
        raise ValueError(f"{where}: no variable is named {unknown[0]!r}; the only one is 'usage'")
    return program


class _Values:
    """The variables of one response for all expressions; converting them takes most of the time."""

    def __init__(self, usage: Usage, *, has_details: bool) -> None:
        self._usage = usage
        self._has_details = has_details
        self._doubles = self._context(float)

    def of(self, program: "Program") -> object:
        """Return the value of ``program`` with doubles or, after a TypeError, with integers.

        Raises:
            Exception: One of ``_EVALUATION_FAULTS``.
        """
        try:
            value: object = program.execute(self._doubles)
        except TypeError:
            value = program.execute(self._context(int))
        return value

    def _context(self, number: type[int] | type[float]) -> "Context":
        from cel import Context  # noqa: PLC0415 - late, as in _compiled()

        prompt = number(self._usage.prompt_tokens)
        completion = number(self._usage.completion_tokens)
        fields: dict[str, object] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if self._has_details:
            fields[_DETAILS] = {"cached_tokens": number(self._usage.cached_tokens)}
        return Context({"usage": fields})
