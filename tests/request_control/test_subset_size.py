"""A subset hint can be as long as a header, if the gateway reads it from one."""

import pytest

from epp.request_control import OutsideSubsetError, subset
from epp.request_control.subset import within
from epp.testing import make_endpoint

POOL = [make_endpoint("a", address="10.0.0.1:8000"), make_endpoint("b", address="10.0.0.2:8000")]


def test_the_first_entries_count() -> None:
    entries = [*(str(number) for number in range(16_383)), "10.0.0.2"]
    assert within(entries, POOL) == POOL[1:]
    with pytest.raises(OutsideSubsetError):
        within(["0", *entries], POOL)


@pytest.mark.parametrize(
    ("size", "kept"), [pytest.param(1024, 1, id="short"), pytest.param(1025, 0, id="long")]
)
def test_only_short_ones_are_kept(size: int, kept: int) -> None:
    subset._cached_parts.cache_clear()
    assert within(["10.0.0.2"] * size, POOL) == POOL[1:]
    assert subset._cached_parts.cache_info().currsize == kept
