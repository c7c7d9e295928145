"""``dp-rank-header-handler`` names a rank; clients cannot."""

from typing import Any

import pytest

from epp.request_control.plugins import REQUEST_HEADERS_TO_SET
from epp.scheduling import ProfileResult, SchedulingResult, ScoredEndpoint
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.profile_handlers.dp_rank_header import HEADER, INTERNAL_HEADER, DpRankHeaderHandler
from epp_plugins.state_keys import PREFIX_RANKS

LABELLED = {"rankLabel": "rank"}
FORGED = {HEADER: "7", INTERNAL_HEADER: '{"10.0.0.1:8000": 7}'}


def headers_of(
    parameters: dict[str, Any],
    labels: dict[str, str],
    ranks: dict[str, int] | None,
    sent: dict[str, str],
) -> dict[str, str | None]:
    """Return the headers to set on a request that goes to ``pod``; another was its fallback."""
    chosen, other = (
        make_endpoint("pod", labels=labels),
        make_endpoint("other", labels={"rank": "9"}),
    )
    result = SchedulingResult(
        {
            "decode": ProfileResult(
                "decode", [ScoredEndpoint(chosen, 1.0), ScoredEndpoint(other, 0.5)]
            ),
            "prefill": ProfileResult("prefill", [ScoredEndpoint(other, 1.0)]),
        },
        "decode",
    )
    state = make_state({} if ranks is None else {PREFIX_RANKS: ranks})
    plugin = make_plugin(DpRankHeaderHandler, parameters)
    plugin.pre_request(make_request(headers=sent), result, state)
    return state.read(REQUEST_HEADERS_TO_SET) or {}


@pytest.mark.parametrize(
    ("parameters", "labels", "ranks", "want"),
    [
        pytest.param({}, {}, {"pod": 3}, "3", id="the rank that a producer found"),
        pytest.param({}, {}, {"pod": 0}, "0", id="rank 0"),
        pytest.param(LABELLED, {"rank": "5"}, {"pod": 3}, "3", id="a producer before the label"),
        pytest.param(LABELLED, {"rank": "5"}, {"other": 3}, "5", id="the label"),
        pytest.param(LABELLED, {"rank": "5"}, None, "5", id="the label without a producer"),
        pytest.param({}, {"rank": "5"}, {"other": 3}, None, id="another endpoint's rank"),
        pytest.param({}, {}, None, None, id="nothing known"),
        pytest.param({}, {}, {"pod": -1}, None, id="a rank below 0"),
        pytest.param(LABELLED, {"rank": "-1"}, None, None, id="a label below 0"),
        pytest.param(LABELLED, {"rank": "first"}, None, None, id="a label that is no number"),
        pytest.param(LABELLED, {"rank": "²"}, None, None, id="a label in other digits"),
        pytest.param(LABELLED, {"rank": "1" * 10}, None, None, id="a label of ten digits"),
        pytest.param(LABELLED, {}, None, None, id="no such label"),
    ],
)
@pytest.mark.parametrize("sent", [{}, FORGED], ids=["plain", "forged headers"])
def test_rank(
    parameters: dict[str, Any],
    labels: dict[str, str],
    ranks: dict[str, int] | None,
    want: str | None,
    sent: dict[str, str],
) -> None:
    check(DpRankHeaderHandler)
    expected: dict[str, str | None] = dict.fromkeys(sent)
    if want is not None:
        expected[HEADER] = want
    assert headers_of(parameters, labels, ranks, sent) == expected


def test_other_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="size"):
        make_plugin(DpRankHeaderHandler, {"size": 8})
