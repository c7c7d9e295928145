from typing import Any

import pytest

from epp.scheduling import WeightedScorer
from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_profile,
    score_table,
)
from epp_plugins.scorers.header_label_affinity import HeaderLabelAffinityScorer

PARAMETERS = {"headerName": "X-Preferred-Zone", "labelKey": "zone"}
PLUGIN = make_plugin(HeaderLabelAffinityScorer, PARAMETERS)
ENDPOINTS = [
    make_endpoint("a", labels={"zone": "eu-1a"}),
    make_endpoint("b", labels={"zone": "eu-1b"}),
    make_endpoint("upper", labels={"zone": "EU-1A"}),
    make_endpoint("empty", labels={"zone": ""}),
    make_endpoint("none", labels={"rack": "eu-1a"}),
]


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        pytest.param({"x-preferred-zone": "eu-1a"}, ["a"], id="equal values"),
        pytest.param({"x-preferred-zone": "EU-1A"}, ["upper"], id="values have a case"),
        pytest.param({"x-preferred-zone": "us-1"}, [], id="nobody's value"),
        pytest.param({"x-preferred-zone": ""}, [], id="empty header"),
        pytest.param({"zone": "eu-1a"}, [], id="another header"),
        pytest.param({}, [], id="no header"),
    ],
)
def test_score(headers: dict[str, str], want: list[str]) -> None:
    table = score_table(PLUGIN, make_request(headers=headers), ENDPOINTS)
    assert list(table) == [endpoint.name for endpoint in ENDPOINTS]
    assert [name for name, score in table.items() if score == 1.0] == want
    assert all(score == 0.0 for name, score in table.items() if name not in want)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"labelKey": "zone"}, "missing required field `headerName`", id="no header"),
        pytest.param({"headerName": "x"}, "missing required field `labelKey`", id="no label"),
        pytest.param(
            {**PARAMETERS, "headerName": ""},
            r"length >= 1 - at `\$\.headerName`",
            id="empty header",
        ),
        pytest.param(
            {**PARAMETERS, "labelKey": ""}, r"length >= 1 - at `\$\.labelKey`", id="empty label"
        ),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_plugin(HeaderLabelAffinityScorer, parameters)


def test_a_profile_weighs_two_pairs() -> None:
    slices = make_plugin(
        HeaderLabelAffinityScorer, {"headerName": "x-slice", "labelKey": "slice"}, name="slice"
    )
    profile = make_profile(scorers=[WeightedScorer(PLUGIN, 1.0), WeightedScorer(slices, 3.0)])
    endpoints = [
        make_endpoint("zone", labels={"zone": "z"}),
        make_endpoint("slice", labels={"slice": "0"}),
        make_endpoint("both", labels={"zone": "z", "slice": "0"}),
    ]
    request = make_request(headers={"x-preferred-zone": "z", "x-slice": "0"})
    # 1, 3 and 1 + 3.
    assert run_profile(profile, request, endpoints) == ["both", "slice", "zone"]
