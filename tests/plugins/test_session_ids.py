import pytest

from epp.scheduling import bounded_id
from epp_plugins.session_ids import usable_id


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param("s-1", "s-1", id="an id"),
        pytest.param(" \t s 1 ", "s 1", id="blanks around it are no part of it"),
        pytest.param("x" * 64, "x" * 64, id="the longest that is kept as it is"),
        pytest.param("x" * 65, bounded_id("x" * 65), id="one longer, of which a hash is kept"),
        pytest.param(" " * 200 + "x" * 256, bounded_id("x" * 256), id="the longest that is taken"),
        pytest.param("Zoë", "Zoë", id="any letters"),
        pytest.param("x" * 257, "", id="one longer"),
        pytest.param("a\nb", "", id="a control character"),
        pytest.param("a\x7fb", "", id="another control character"),
        pytest.param("a\ud800", "", id="half a character"),
        pytest.param("  ", "", id="blanks"),
        pytest.param("", "", id="empty"),
        pytest.param(None, "", id="nothing"),
        pytest.param(7, "", id="not a text"),
    ],
)
def test_usable_id(value: object, want: str) -> None:
    assert usable_id(value) == want
