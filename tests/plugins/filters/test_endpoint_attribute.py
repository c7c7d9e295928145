from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest

from epp.scheduling import AttributeKey, Endpoint
from epp.testing import (
    check,
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins.filters.endpoint_attribute import EndpointAttributeFilter
from epp_plugins.state_keys import GPU_UTILIZATION, attribute_of

HEAT = AttributeKey[Any]("gpu-heat/core-metrics-extractor")


def having(value: object, key: AttributeKey[Any] = HEAT) -> Endpoint:
    return make_endpoint(repr(value)[:20], attributes={key: value})


def compares(operator: str, value: float = 10, **parameters: Any) -> EndpointAttributeFilter:
    algorithm = {"type": "threshold", "threshold": {"operator": operator, "value": value}}
    return make_plugin(
        EndpointAttributeFilter, {"attribute": "gpu-heat", "algorithm": algorithm, **parameters}
    )


FIVE_TEN_FIFTEEN = [having(5), having(10.0), having(15)]
MISSING = make_endpoint("missing")


@pytest.mark.parametrize(
    ("plugin", "endpoints", "want"),
    [
        pytest.param(compares("LessThan"), FIVE_TEN_FIFTEEN, ["5"], id="less than"),
        pytest.param(
            compares("LessThanOrEqual"), FIVE_TEN_FIFTEEN, ["5", "10.0"], id="less than or equal"
        ),
        pytest.param(compares("GreaterThan"), FIVE_TEN_FIFTEEN, ["15"], id="greater than"),
        pytest.param(
            compares("GreaterThanOrEqual"),
            FIVE_TEN_FIFTEEN,
            ["10.0", "15"],
            id="greater than or equal",
        ),
        pytest.param(compares("Equal"), FIVE_TEN_FIFTEEN, ["10.0"], id="equal"),
        pytest.param(compares("NotEqual"), FIVE_TEN_FIFTEEN, ["5", "15"], id="not equal"),
        pytest.param(
            compares("LessThan"), [having(15), MISSING], ["missing"], id="missing passes by default"
        ),
        pytest.param(
            compares("LessThan", onMissing="Fail"), [having(5), MISSING], ["5"], id="missing fails"
        ),
        pytest.param(compares("LessThan"), [having(15), having(20)], [], id="none is left"),
        pytest.param(
            compares("LessThan", fallbackOnEmpty=True),
            [having(15), having(20)],
            ["15", "20"],
            id="all, where none would be left",
        ),
        pytest.param(
            compares("LessThan", fallbackOnEmpty=True),
            [having(5), having(20)],
            ["5"],
            id="no falling back while one is left",
        ),
        pytest.param(
            compares("GreaterThan", -1e300, onMissing="Fail"),
            [
                *map(having, (nan, inf, -inf, True, "5", None, 10**400, Decimal(5), (5,))),
                having(-1.5),
            ],
            ["-1.5"],
            id="what is no finite number is missing",
        ),
    ],
)
def test_filter(
    plugin: EndpointAttributeFilter, endpoints: list[Endpoint], want: list[str]
) -> None:
    assert run_filter(plugin, make_request(), endpoints) == want


@pytest.mark.parametrize(
    ("attribute", "producer", "want"),
    [
        pytest.param("gpu-heat", None, "gpu-heat/core-metrics-extractor", id="no producer"),
        pytest.param("gpu-heat", "mine", "gpu-heat/mine", id="producer"),
        pytest.param("llm-d.ai/queue", "", "llm-d.ai/queue/", id="producer without a name"),
        pytest.param("llm-d.ai/queue", "mine", "llm-d.ai/queue/mine", id="slash of its own"),
        pytest.param("GPUUtilization/dcgm-extractor", None, GPU_UTILIZATION.name, id="both in one"),
        pytest.param(
            "GPUUtilization", "dcgm-extractor", GPU_UTILIZATION.name, id="the same in two"
        ),
        pytest.param("llm-d.ai/queue/mine", None, "llm-d.ai/queue/mine", id="two slashes in one"),
    ],
)
def test_attribute_is_found_under_its_producer(
    attribute: str, producer: str | None, want: str
) -> None:
    check(EndpointAttributeFilter)
    key = AttributeKey[float](want)
    assert attribute_of(attribute, producer) is key
    parameters: dict[str, Any] = {"attribute": attribute, "onMissing": "Fail"}
    if producer is not None:
        parameters["producer"] = producer
    plugin = compares("LessThan", **parameters)
    assert plugin.optional_reads == (key,)
    endpoints = [having(5, key), having(6, AttributeKey("another/one"))]
    assert run_filter(plugin, make_request(), endpoints) == ["5"]


THRESHOLD = {"type": "threshold", "threshold": {"operator": "LessThan", "value": 1}}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"algorithm": THRESHOLD}, "missing required field `attribute`", id="no name"),
        pytest.param(
            {"attribute": "", "algorithm": THRESHOLD},
            r"length >= 1 - at `\$\.attribute`",
            id="empty name",
        ),
        pytest.param({"attribute": "a"}, "missing required field `algorithm`", id="no algorithm"),
        pytest.param(
            {"attribute": "a", "algorithm": {"type": "percentile", "threshold": {}}},
            r"Invalid enum value 'percentile' - at `\$\.algorithm\.type`",
            id="another algorithm",
        ),
        pytest.param(
            {"attribute": "a", "algorithm": {"type": "threshold"}},
            r"missing required field `threshold` - at `\$\.algorithm`",
            id="no threshold",
        ),
        pytest.param(
            {"attribute": "a", "algorithm": {**THRESHOLD, "threshold": {"operator": "Around"}}},
            r"Invalid enum value 'Around' - at `\$\.algorithm\.threshold\.operator`",
            id="unknown operator",
        ),
        pytest.param(
            {"attribute": "a", "algorithm": THRESHOLD, "onMissing": "Maybe"},
            r"Invalid enum value 'Maybe' - at `\$\.onMissing`",
            id="unknown policy",
        ),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plugin(EndpointAttributeFilter, parameters)


def test_a_profile_leaves_the_hot_one_out() -> None:
    profile = make_profile(filters=[compares("LessThan", 85)])
    assert run_profile(profile, make_request(), [having(90), having(70)]) == ["70"]
