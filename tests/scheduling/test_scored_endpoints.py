import pytest

from epp.scheduling import ScoredEndpoint, ScoredEndpoints
from epp.testing import make_endpoint

PODS = [make_endpoint(name) for name in "abc"]


def made() -> ScoredEndpoints:
    return ScoredEndpoints(PODS, [0.1, 0.2, 0.3])


def test_it_is_a_sequence_of_scored_endpoints() -> None:
    scored = made()
    assert [(s.endpoint.name, s.score) for s in scored] == [("a", 0.1), ("b", 0.2), ("c", 0.3)]
    assert len(scored) == 3
    assert max(scored, key=lambda s: s.score).endpoint is PODS[2]
    assert [s.endpoint.name for s in reversed(scored)] == ["c", "b", "a"]


def test_an_item_is_the_same_object_at_every_access() -> None:
    scored = made()
    first = scored[1]
    assert first is scored[1] is scored[-2] is list(scored)[1] is scored[0:2][1]
    assert scored.index(first) == 1
    assert first in scored


@pytest.mark.parametrize("index", [3, -4])
def test_beyond_its_ends_there_is_nothing(index: int) -> None:
    scored = made()
    with pytest.raises(IndexError):
        scored[index]
    assert len(list(scored)) == 3


def test_it_knows_the_items_it_handed_out() -> None:
    scored = made()
    first = scored[0]
    assert scored.is_own(first)
    assert not scored.is_own(ScoredEndpoint(PODS[0], 0.1))  # the same, made by somebody else
    assert not made().is_own(first)
