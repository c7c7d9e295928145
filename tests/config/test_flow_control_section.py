"""Faults in the flow control section: each error names the place and the remedy."""

import pytest
from config.graphs import HEAD

from epp.building import make_builder
from epp.config import ConfigError, PluginGraph, load_text

PLUGINS = (
    "plugins: [{type: queue-scorer}, {type: round-robin-fairness-policy},"
    " {type: edf-ordering-policy}, {type: priority-holdback-policy, parameters: {minCeiling: 0.5}}]"
    "\n"
)
ON = HEAD + "featureGates: [flowControl]\n" + PLUGINS
OFF = HEAD + PLUGINS
SECTION = "flowControl: {%s}\n"
BAND = "flowControl: {priorityBands: [{priority: 1, %s}]}\n"
OURS = "extensions: {flowControl: {%s}}\n"
FAIRNESS = "flowControl.priorityBands[0].fairnessPolicyRef"


def built(text: str) -> PluginGraph:
    return make_builder().build(load_text(text, "f"))


FAULTS: dict[str, tuple[str, str]] = {
    "a policy that there is not": (
        ON + BAND % "fairnessPolicyRef: nope",
        (
            f"f:5:64: {FAIRNESS}: no policy is named `nope`; defined: `edf-ordering-policy`,"
            " `fcfs-ordering-policy`, `global-strict-fairness-policy`, `priority-holdback-policy`,"
            " `queue-scorer`, `round-robin-fairness-policy`, `static-usage-limit-policy`; others"
            " need an entry in `plugins`"
        ),
    ),
    "a policy that is nearly right": (
        ON + BAND % "fairnessPolicyRef: round-robin-fairness",
        (
            f"f:5:64: {FAIRNESS}: no policy is named `round-robin-fairness`; did you mean"
            " `round-robin-fairness-policy`? Others need an entry in `plugins`"
        ),
    ),
    "an installed policy without an entry": (
        ON + BAND % "orderingPolicyRef: slo-deadline-ordering-policy",
        (
            "f:5:64: flowControl.priorityBands[0].orderingPolicyRef: no policy is named"
            " `slo-deadline-ordering-policy`; did you mean `edf-ordering-policy`? Others need an"
            " entry in `plugins`"
        ),
    ),
    "a scorer for a fairness policy": (
        ON + BAND % "fairnessPolicyRef: queue-scorer",
        (
            f"f:5:64: {FAIRNESS}: `queue-scorer` (queue-scorer) does not implement"
            " FairnessPolicy; candidates: `round-robin-fairness-policy`,"
            " `global-strict-fairness-policy`"
        ),
    ),
    "a policy of another role for all bands, told of once": (
        ON + SECTION % "defaultPriorityBand: {fairnessPolicyRef: edf-ordering-policy}",
        (
            "f:5:56: flowControl.defaultPriorityBand.fairnessPolicyRef: `edf-ordering-policy`"
            " (edf-ordering-policy) does not implement FairnessPolicy; candidates:"
            " `round-robin-fairness-policy`"
        ),
    ),
    "a fairness policy that is to order requests of negative priority": (
        ON
        + SECTION % "defaultNegativePriorityBand: {orderingPolicyRef: round-robin-fairness-policy}",
        (
            "f:5:64: flowControl.defaultNegativePriorityBand.orderingPolicyRef:"
            " `round-robin-fairness-policy` (round-robin-fairness-policy) does not implement"
            " OrderingPolicy; candidates: `edf-ordering-policy`, `fcfs-ordering-policy`"
        ),
    ),
    "a scorer for a detector": (
        ON + SECTION % "saturationDetector: {pluginRef: queue-scorer}",
        (
            "f:5:47: flowControl.saturationDetector.pluginRef: `queue-scorer` (queue-scorer) does"
            " not implement SaturationDetector; there is none in `plugins`"
        ),
    ),
    "two bands of one priority": (
        ON + SECTION % "priorityBands: [{priority: 1}, {priority: 2}, {priority: 1}]",
        (
            "f:5:72: flowControl.priorityBands[2].priority: there is another band of priority 1;"
            " keep one"
        ),
    ),
    "two bands of one priority in the extension": (
        ON + OURS % "priorityBands: [{priority: 1, floorShare: 0}, {priority: 1}]",
        (
            "f:5:85: extensions.flowControl.priorityBands[1].priority: there is another band of"
            " priority 1; keep one"
        ),
    ),
    "a negative time": (
        ON + SECTION % "defaultRequestTTL: -5s",
        (
            "f:5:34: flowControl.defaultRequestTTL: `-5s` is not a duration of 0 or more; write it"
            " as 200ms, 60s or 1m30s"
        ),
    ),
    "a time without a unit": (
        ON + OURS % "priorityBands: [{priority: 1, requestTTL: 60}]",
        (
            "f:5:70: extensions.flowControl.priorityBands[0].requestTTL: `60` is no duration, as it"
            " has no unit; write `60s` or `60ms`"
        ),
    ),
    "a negative number of requests": (
        ON + SECTION % "maxRequests: -1",
        (
            "f:5:28: flowControl.maxRequests: `-1` is not a quantity of 0 or more; write it as"
            " 5000, 20k or 10Gi"
        ),
    ),
    "a number of requests that is none": (
        ON + BAND % "maxRequests: true",
        (
            "f:5:58: flowControl.priorityBands[0].maxRequests: `true` is not a quantity of 0 or"
            " more; write it as 5000, 20k or 10Gi"
        ),
    ),
    "half a request": (
        ON + SECTION % "maxRequests: 1.5",
        "f:5:28: flowControl.maxRequests: expected a whole number or a text, got a number",
    ),
    "more than half of all dispatches for a floor": (
        ON + OURS % "floorShare: 0.9",
        "f:5:40: extensions.flowControl.floorShare: expected a number <= 0.5",
    ),
    "ours in the reference's section": (
        ON + SECTION % "whenFiltered: wait",
        (
            "f:5:15: flowControl.whenFiltered: unknown field `whenFiltered`; it stands under"
            " `extensions.flowControl`"
        ),
    ),
    "ours in the reference's band": (
        ON + BAND % "requestTTL: 5s",
        (
            "f:5:45: flowControl.priorityBands[0].requestTTL: unknown field `requestTTL`; it stands"
            " under `extensions.flowControl.priorityBands[]`"
        ),
    ),
    "the reference's in our band": (
        ON + OURS % "priorityBands: [{priority: 1, maxRequests: 5}]",
        (
            "f:5:58: extensions.flowControl.priorityBands[0].maxRequests: unknown field"
            " `maxRequests`; it stands under `flowControl.priorityBands[]`"
        ),
    ),
    "gates as Kubernetes has them": (
        HEAD + "featureGates: {flowControl: true}\n",
        (
            "f:3:15: featureGates: expected a list, got a mapping; write"
            " `featureGates: [flowControl=true]`"
        ),
    ),
    "a gate with a colon": (
        HEAD + "featureGates:\n- flowControl: true\n",
        (
            "f:4:3: featureGates[0]: expected a text, got a mapping; write"
            " `featureGates: [flowControl=true]`"
        ),
    ),
    "a gate misspelt": (
        HEAD + "featureGates: [flow-control]\n",
        "f:3:16: featureGates[0]: unknown feature gate `flow-control`; did you mean `flowControl`?",
    ),
}


@pytest.mark.parametrize(("text", "said"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_reported_once_with_its_place_and_mend(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        built(text)
    (problem,) = refused.value.problems
    assert problem.text("f") == said


OFF_TEXT = "the feature gate `flowControl` is off"
NEVER = f"is never used: {OFF_TEXT}"


@pytest.mark.parametrize(
    "section",
    [
        pytest.param("", id="that nobody names"),
        pytest.param(BAND % "fairnessPolicyRef: round-robin-fairness-policy", id="of a band"),
        pytest.param(BAND % "fairnessPolicyRef: queue-scorer", id="with a section full of faults"),
    ],
)
def test_without_the_gate_policies_are_reported_as_off(section: str) -> None:
    graph = built(OFF + section)
    assert [each.message for each in graph.warnings] == [
        f"`round-robin-fairness-policy` {NEVER}",
        f"`edf-ordering-policy` {NEVER}",
        f"`priority-holdback-policy` {NEVER}",
    ]
    found = [each.text("f") for each in graph.config.warnings]
    in_section = f"f:4:15: flowControl.priorityBands: is not in effect: {OFF_TEXT}"
    assert found == ([in_section] if section else [])


def test_with_the_gate_policies_that_are_named_are_not_reported() -> None:
    graph = built(
        ON
        + "flowControl: {usageLimitPolicyPluginRef: priority-holdback-policy, defaultPriorityBand:"
        " {fairnessPolicyRef: round-robin-fairness-policy, orderingPolicyRef:"
        " edf-ordering-policy}}\n"
    )
    assert (graph.warnings, graph.config.warnings) == ((), ())


def test_what_the_reference_takes_for_absent_is_absent() -> None:
    empty = built(
        ON + "flowControl: {usageLimitPolicyPluginRef: '', priorityBands: [{fairnessPolicyRef: '',"
        " orderingPolicyRef: ''}]}\ndataLayer: {crossReplicaSyncerPluginRef: ''}\n"
    )
    absent = built(ON + "flowControl: {priorityBands: [{priority: 0}]}\n")
    assert empty.effective.flow_control == absent.effective.flow_control
    assert empty.config.warnings == ()


@pytest.mark.parametrize("template", ["defaultPriorityBand", "defaultNegativePriorityBand"])
def test_priority_of_a_template_has_no_effect_and_is_warned_of(template: str) -> None:
    graph = built(ON + SECTION % f"{template}: {{priority: 3, maxRequests: 7}}")
    (warning,) = graph.config.warnings
    assert (warning.path, warning.message) == (
        f"flowControl.{template}.priority",
        "has no effect in a template",
    )


def test_bands_may_have_one_priority_in_both_sections_and_0_is_the_default_limit() -> None:
    graph = built(
        ON
        + BAND % "maxRequests: 0, fairnessPolicyRef: round-robin-fairness-policy"
        + OURS % "priorityBands: [{priority: 1, requestTTL: 0s}, {priority: -5}]"
    )
    section = graph.effective.flow_control
    assert section is not None
    (band,) = section.priority_bands
    assert (band.max_requests, band.max_bytes) == (5000, "1G")
