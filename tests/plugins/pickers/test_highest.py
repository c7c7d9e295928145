"""The index of the highest score, in pure Python and compiled."""

from hypothesis import given
from hypothesis import strategies as st

from epp_plugins.pickers.highest import highest

SCORES = st.lists(
    st.one_of(st.sampled_from((0.0, 0.5, 1.0)), st.floats(allow_nan=False)), min_size=1
)


@given(SCORES)
def test_it_is_the_first_place_of_the_maximum_and_how_often_it_occurs(scores: list[float]) -> None:
    most = max(scores)
    assert highest(tuple(scores)) == (scores.index(most), scores.count(most))
