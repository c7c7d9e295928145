"""The sentence that explains why a request was routed to its endpoint."""

from collections.abc import Sequence

import pytest

from epp.admin.captured import CandidateNames, CapturedDecision
from epp.admin.captured_results import CapturedProfile
from epp.admin.reasons import why

NAMES = ("a", "b", "c")


def reason(
    totals: Sequence[float],
    queue: Sequence[float] = (),
    *,
    left: Sequence[str] | None = None,
    preference: Sequence[float] = (),
    picked: str = "a",
) -> str:
    """Return the sentence of a decision among ``NAMES``, of which the filters ``left`` some."""
    profile = CapturedProfile(
        name="default",
        removed={},
        endpoints=left,
        totals=totals,
        scores=((("queue", 1.0),), (queue,)) if queue else ((), ()),
        picked=[picked],
        preference=preference,
        error="",
    )
    names = CandidateNames(NAMES, NAMES, ({},) * 3)
    entry = CapturedDecision(
        names, (), (), None, 0.0, 1, 0, 0.0, endpoint=picked, primary="default"
    )
    return why(entry, profile)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            reason([4, 1, 2], [4, 1, 2]),
            "a had the highest total, 4, 2 above the next, mostly by queue, among 3 endpoints.",
        ),
        (
            reason([4, 1], [4, 1], left=["a", "c"]),
            (
                "a had the highest total, 4, 3 above the next, mostly by queue, among 2 endpoints"
                " that passed the filters, of 3."
            ),
        ),
        # Weight 1 is scaled to 10: queue is for c, 10 * (0.1 - 0.0), and the preference is 5.
        (
            reason([5, 0, 1], [0.0, 0.0, 0.1], preference=[5, 0, 0]),
            (
                "a had the highest total, 5, 4 above the next, mostly by flow control's preference,"
                " among 3 endpoints."
            ),
        ),
        (
            reason([4, 4, 4], [1, 1, 1]),
            "a was picked among 3 endpoints, because all had the same total, 4.",
        ),
        (
            reason([4, 4, 1], [1, 1, 0]),
            (
                "a and 1 other had the highest total, 4, among 3 endpoints, and it was picked among"
                " these."
            ),
        ),
        (
            reason([1, 4, 2], [1, 4, 2]),
            "a was picked with a total of 1, 3 below the best, among 3 endpoints.",
        ),
        (
            reason([1, 2], [1, 2], left=["b", "c"]),
            "a was chosen by the profile handler, among 2 endpoints that passed the filters, of 3.",
        ),
        (
            reason([1], [1], left=["a"]),
            "a was the only one of 3 endpoints that passed the filters.",
        ),
    ],
)
def test_the_reason_of_a_choice(sentence: str, expected: str) -> None:
    assert sentence == expected
