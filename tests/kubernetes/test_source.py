"""Names of several pools together."""

from epp.kubernetes.source import PoolsSource


def test_all_pools_have_one_title() -> None:
    assert PoolsSource("d").title == "all-pools"


def test_the_order_of_names_does_not_matter() -> None:
    assert (
        PoolsSource("d", names=("b", "a")).title
        == "a-b"
        == PoolsSource("d", names=("a", "b")).title
    )


def test_long_titles_are_cut_and_stay_different() -> None:
    names = tuple(f"pool-{number}" for number in range(40))
    title, other = (PoolsSource("d", names=each).title for each in (names, names[:-1]))
    assert title != other
    assert len(title) == len(other) == 128 + 1 + 8
