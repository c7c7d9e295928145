import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp_plugins.session_bindings import LIMIT, SessionBindings


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made(
    clock: Clock, *, ttl: float = 60, sweep: float = 10, limit: int = LIMIT
) -> SessionBindings:
    return SessionBindings(ttl_seconds=ttl, sweep_seconds=sweep, clock=clock, limit=limit)


def test_a_binding_is_found_until_its_time_is_over() -> None:
    clock = Clock()
    bindings = made(clock, ttl=60)
    assert bindings.endpoint_of("s") == ""
    bindings.bind("s", "a")
    clock.now += 60
    assert bindings.endpoint_of("s") == "a"
    clock.now += 0.5
    assert bindings.endpoint_of("s") == "", "believed no more, swept or not"


def test_use_renews_it_and_reading_does_not() -> None:
    clock = Clock()
    bindings = made(clock, ttl=60)
    bindings.bind("used", "a")
    bindings.bind("read", "a")
    clock.now += 50
    bindings.bind("used", "b")
    assert bindings.endpoint_of("read") == "a"
    clock.now += 50
    assert (bindings.endpoint_of("used"), bindings.endpoint_of("read")) == ("b", "")


def test_when_full_the_one_unused_for_longest_makes_room() -> None:
    bindings = made(Clock(), limit=2)
    for session in ("old", "new", "old", "third"):
        bindings.bind(session, "a")
    assert len(bindings) == 2
    assert [s for s in ("old", "new", "third") if bindings.endpoint_of(s)] == ["old", "third"]


def test_expired_ones_are_swept_when_it_is_time() -> None:
    clock = Clock()
    bindings = made(clock, ttl=5, sweep=10)  # the first sweep is due at 110
    for index in range(3):
        bindings.bind(f"s-{index}", "a")
    clock.now += 9
    bindings.bind("t", "a")
    assert len(bindings) == 4, "expired at 105, but it is 109"
    clock.now += 1
    bindings.bind("u", "a")
    assert len(bindings) == 2, "t and u"
    clock.now += 9  # 119; the next sweep is due at 120
    bindings.bind("v", "a")
    assert len(bindings) == 3
    clock.now += 1
    bindings.bind("w", "a")
    assert len(bindings) == 2, "v and w"


def test_no_single_use_pays_for_many_expired_ones() -> None:
    clock = Clock()
    bindings = made(clock, ttl=5, sweep=10)
    for index in range(200):
        bindings.bind(f"s-{index}", "a")
    clock.now += 20
    sizes = []
    for _ in range(4):
        bindings.bind("t", "a")
        sizes.append(len(bindings))
    assert sizes == [137, 73, 9, 1]  # 201 less 64 each; the last 8, and t stays


@pytest.mark.parametrize("limit", [1, 7])
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.sampled_from("abc"), st.floats(0, 30)),
        max_size=60,
    )
)
def test_it_never_exceeds_its_bound_and_never_lies(
    limit: int, steps: list[tuple[int, str, float]]
) -> None:
    """Against a model that keeps everything: what is found is what was bound, and in time."""
    clock = Clock()
    bindings = made(clock, ttl=20, sweep=15, limit=limit)
    model: dict[int, tuple[str, float]] = {}
    for session, endpoint, pause in steps:
        clock.now += pause
        model.pop(session, None)
        model[session] = (endpoint, clock.now)
        bindings.bind(str(session), endpoint)
        assert len(bindings) <= limit
        newest = list(model)[-limit:]
        for known, (bound, used_at) in model.items():
            is_kept = known in newest and clock.now - used_at <= 20
            assert bindings.endpoint_of(str(known)) == (bound if is_kept else "")
