"""``request-attribute-reporter`` computes a number from the usage, or reports nothing."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from config.graphs import load

from epp.building import make_builder
from epp.config import ConfigError
from epp.request_control.plugins import Usage
from epp.scheduling import CycleState, Plugin
from epp.testing import check, make_endpoint, make_plugin, make_request
from epp_plugins.reporters.request_attributes import RequestAttributeReporter

USAGE = Usage(prompt_tokens=7, completion_tokens=10, cached_tokens=3)
COST = "x-gateway-inference-request-cost"


class Counted:
    """The metrics of a plugin, as a list of the labels that were counted."""

    def __init__(self) -> None:
        self.labels: list[tuple[str, ...]] = []

    def inc(self, *labels: str) -> None:
        self.labels.append(labels)

    def counter(
        self, plugin: Plugin, name: str, documentation: str, labels: Sequence[str] = ()
    ) -> "Counted":
        assert name == "request_attribute_reports_total"
        return self

    def gauge(
        self,
        plugin: Plugin,
        name: str,
        documentation: str,
        read: Callable[[], Mapping[tuple[str, ...], float]],
        labels: Sequence[str] = (),
    ) -> None:
        raise AssertionError(name)


def parameters(expression: str, condition: str = "", **key: str) -> dict[str, Any]:
    entry = {"key": {"name": COST, **key}, "expression": expression, "condition": condition}
    return {"attributes": [entry]}


def report(expression: str, condition: str = "", usage: Usage | None = USAGE) -> tuple[object, str]:
    """Return the value reported, None for none, and how it was counted."""
    counted = Counted()
    plugin = make_plugin(
        RequestAttributeReporter, parameters(expression, condition), metrics=counted
    )
    facts = plugin.report_response(make_request(), usage, make_endpoint(), CycleState())
    ((outcome,),) = counted.labels
    return facts.get("envoy.lb", {}).get(COST), outcome


VALUES: Mapping[str, tuple[str, str, int]] = {
    "one field": ("usage.completion_tokens", "", 10),
    "the sum of two, over lines": ("\n usage.prompt_tokens +\n usage.completion_tokens\n", "", 17),
    "all": ("usage.total_tokens", "", 17),
    "cached": ("usage.prompt_tokens_details.cached_tokens", "", 3),
    "with doubles": ("usage.prompt_tokens + 1.5 * usage.completion_tokens", "", 22),
    "with whole numbers": ("usage.prompt_tokens + 2 * usage.completion_tokens", "", 27),
    "a fraction cut off towards 0": ("-usage.prompt_tokens / 2.0", "", -3),
    "-1": ("usage.prompt_tokens - 8.0", "", -1),
    "a choice": ("(has(usage.x) ? usage.x : 0) + (has(usage.y) ? 1 : 2)", "", 2),
    "a condition that is true": ("usage.prompt_tokens", "has(usage.completion_tokens)", 7),
    "a comparison with a whole number": ("1", "usage.prompt_tokens > 6", 1),
    "a macro with a name of its own": ("[1, 2].map(x, x * 2)[1]", "", 4),
}


@pytest.mark.parametrize(("expression", "condition", "want"), VALUES.values(), ids=VALUES)
def test_value_is_reported_as_a_whole_number(expression: str, condition: str, want: int) -> None:
    assert report(expression, condition) == (want, "reported")


NONE: Mapping[str, tuple[str, str, str]] = {
    "a condition that is false": ("1", "usage.prompt_tokens > 100.0", "skipped"),
    "a condition that is no boolean": ("1", "usage.prompt_tokens", "skipped"),
    "a condition that fails": ("1", "usage.x > 1.0", "failed"),
    "a field that is not there": ("usage.x", "", "failed"),
    "a division by zero": ("1 / (usage.prompt_tokens - 7)", "", "failed"),
    "an overflow": ("9223372036854775807 + usage.prompt_tokens", "", "failed"),
    "a text": ("'a'", "", "failed"),
    "a boolean": ("true", "", "failed"),
    "a list": ("[1]", "", "failed"),
    "infinity": ("usage.prompt_tokens / 0.0", "", "failed"),
    "more than 64 bits": ("usage.prompt_tokens * 1e300", "", "failed"),
    "a function that is not there": ("max(1, 2)", "", "failed"),
    "kinds that do not go together": ("usage.prompt_tokens + 'a'", "", "failed"),
}


@pytest.mark.parametrize(("expression", "condition", "outcome"), NONE.values(), ids=NONE)
def test_what_has_no_value_is_not_reported_and_no_failure_of_the_plugin(
    expression: str, condition: str, outcome: str
) -> None:
    assert report(expression, condition) == (None, outcome)


def test_a_response_without_usage_is_not_reported() -> None:
    assert report("1", usage=None) == (None, "skipped")


@pytest.mark.parametrize(
    ("namespace", "want"), [("", "envoy.lb"), ("envoy.lb", "envoy.lb"), ("mine", "mine")]
)
def test_namespace(namespace: str, want: str) -> None:
    check(RequestAttributeReporter)
    plugin = make_plugin(RequestAttributeReporter, parameters("1", namespace=namespace))
    facts = plugin.report_response(make_request(), USAGE, make_endpoint(), CycleState())
    assert facts == {want: {COST: 1}}


REFUSED: Mapping[str, tuple[str, str]] = {
    "no attributes": ("{}", "attributes"),
    "none": ("{attributes: []}", "attributes"),
    "two": ("{attributes: [ATTRIBUTE, ATTRIBUTE]}", "attributes"),
    "no name": ("{attributes: [{key: {name: ''}, expression: '1'}]}", "attributes[0].key.name"),
    "no expression": ("{attributes: [{key: {name: a}}]}", "expression"),
    "an unknown field": ("{attributes: [{key: {name: a}, expression: '1', x: 1}]}", "x"),
    "no CEL": ("{attributes: [{key: {name: a}, expression: '1 +'}]}", "attributes[0].expression"),
    "no CEL for a condition": (
        "{attributes: [{key: {name: a}, expression: '1', condition: ')'}]}",
        "attributes[0].condition",
    ),
    "another variable": (
        "{attributes: [{key: {name: a}, expression: 'request.size'}]}",
        "no variable is named 'request'; the only one is 'usage'",
    ),
    "an expression that is too long": (
        "{attributes: [{key: {name: a}, expression: '" + "1+" * 3000 + "1'}]}",
        "attributes[0].expression",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_what_could_never_be_reported_is_refused(text: str, message: str) -> None:
    text = text.replace("ATTRIBUTE", "{key: {name: a}, expression: '1'}")
    entry = f"plugins: [{{type: request-attribute-reporter, parameters: {text}}}]\n"
    with pytest.raises(ConfigError) as caught:
        make_builder(0).build(load(entry))
    assert message in str(caught.value)


def test_the_library_is_imported_only_for_an_expression() -> None:
    script = (
        "import sys; from epp.building import make_builder; from epp.config import default_config;"
        "make_builder(0).build(default_config()); sys.exit('cel' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
