"""The score of a load value, in pure Python and compiled."""

from hypothesis import given
from hypothesis import strategies as st

from epp_plugins.scorers.least_first import least_first

VALUES = st.lists(st.one_of(st.integers(0, 50), st.floats(0.0, 1e6)), min_size=1)


@given(VALUES)
def test_the_least_value_scores_one_and_the_most_zero(values: list[float]) -> None:
    spread = max(values) - min(values)
    want = [(max(values) - each) / spread for each in values] if spread else [1.0] * len(values)
    assert least_first(values) == want
