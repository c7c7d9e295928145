"""Use of several endpoint pickers by tenants: shares, decay, leaving and returning pickers."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp_plugins.flow_control.shared_use import (
    MAX_NAME_BYTES,
    MAX_REPORTED,
    Change,
    SharedUse,
    Use,
)

HALF_LIFE = 10.0


def made(epoch: int = 1) -> SharedUse:
    return SharedUse(1.0 / HALF_LIFE, epoch)


def sum_of(changes: Sequence[Change], name: str = "a") -> Use:
    found = [use for changed, use in changes if changed == name]
    return Use(*(sum(numbers) for numbers in zip(*found, strict=True))) if found else Use()


def test_a_part_is_what_is_in_flight_and_what_was_received() -> None:
    mine, other = made(), made(2)
    mine.begin("a", 20.0, 30.0, 0.0)
    mine.begin("b", 5.0, 5.0, 0.0)
    assert sorted(other.receive("mine", mine.encoded(0.0), 0.0)) == [
        ("a", Use(1, 20, 30, 30)),
        ("b", Use(1, 5, 5, 5)),
    ]
    mine.end("a", 20.0, 30.0, -10.0, 0.0)
    assert other.receive("mine", mine.encoded(0.0), 0.0) == [("a", Use(-1, -20, -30, -10))]


def test_a_part_that_only_decays_changes_nothing() -> None:
    mine, other = made(), made(2)
    mine.receive_tokens("a", 1000.0, 0.0)
    other.receive("mine", mine.encoded(0.0), 0.0)
    assert mine.encoded(0.5) == mine.encoded(0.9)
    assert other.receive("mine", mine.encoded(HALF_LIFE), HALF_LIFE) == []


def test_messages_that_are_lost_or_come_twice_do_no_harm() -> None:
    mine, other = made(), made(2)
    mine.begin("a", 10.0, 10.0, 0.0)
    mine.encoded(0.0)  # lost
    mine.begin("a", 10.0, 10.0, 0.0)
    again = mine.encoded(0.0)
    assert other.receive("mine", again, 0.0) == [("a", Use(2, 20, 20, 20))]
    assert other.receive("mine", again, 0.0) == []


def test_what_one_that_left_had_in_flight_is_free_but_its_tokens_count() -> None:
    mine, other = made(), made(2)
    mine.begin("a", 10.0, 50.0, 0.0)
    other.receive("mine", mine.encoded(0.0), 0.0)
    assert other.left("mine") == [("a", Use(-1, -10, -50, 0))]
    assert other.left("mine") == []
    assert other.left("stranger") == []


def test_one_that_was_cut_off_does_not_report_its_tokens_again() -> None:
    mine, other = made(), made(2)
    mine.begin("a", 10.0, 64.0, 0.0)
    other.receive("mine", mine.encoded(0.0), 0.0)
    other.left("mine")
    mine.receive_tokens("a", 100.0, HALF_LIFE)
    assert other.receive("mine", mine.encoded(HALF_LIFE), HALF_LIFE) == [
        ("a", Use(1, 10, 64, 100)),
    ]


@pytest.mark.parametrize("has_left", [True, False])
def test_one_that_starts_again_takes_nothing_back(has_left: bool) -> None:
    mine, other = made(), made(2)
    mine.begin("a", 10.0, 64.0, 0.0)
    changes = other.receive("mine", mine.encoded(0.0), 0.0)
    if has_left:
        changes += other.left("mine")
    again = made(3)
    again.receive_tokens("a", 5.0, 0.0)
    changes += other.receive("mine", again.encoded(0.0), 0.0)
    assert sum_of(changes) == Use(0, 0, 0, 69)


def test_a_tenant_that_is_reported_no_more_gives_nothing_back() -> None:
    mine, other = made(), made(2)
    mine.begin("a", 10.0, 64.0, 0.0)
    mine.end("a", 10.0, 64.0, 0.0, 0.0)
    changes = other.receive("mine", mine.encoded(0.0), 0.0)
    for number in range(MAX_REPORTED):
        mine.receive_tokens(f"t{number}", 10.0, 0.0)
    changes += other.receive("mine", mine.encoded(0.0), 0.0)
    mine.receive_tokens("a", 7.0, 0.0)
    changes += other.receive("mine", mine.encoded(0.0), 0.0)
    assert sum_of(changes) == Use(0, 0, 0, 71)
    assert len({name for name, _ in changes}) == MAX_REPORTED + 1


def test_names_and_numbers_of_others_are_bounded() -> None:
    mine, other = made(), made(2)
    mine.begin("x" * (MAX_NAME_BYTES + 1), 1.0, 1.0, 0.0)
    assert other.receive("mine", mine.encoded(0.0), 0.0) == []
    uses = {f"t{number}": (1, 1, 1, 1) for number in range(MAX_REPORTED + 9)}
    uses |= {"y" * 300: (1, 1, 1, 1)}
    changes = other.receive("mine", msgspec.msgpack.encode((1, uses)), 0.0)
    assert len(changes) == MAX_REPORTED
    below_0 = msgspec.msgpack.encode((2, {"t0": (-5, -5, -5, -5)}))
    assert sum_of(other.receive("mine", below_0, 0.0), "t0") == Use(-1, -1, -1, 0)


@pytest.mark.parametrize("sent", [b"", b"\xc1", msgspec.msgpack.encode({"a": 1})])
def test_what_is_no_part_is_refused(sent: bytes) -> None:
    other = made()
    with pytest.raises(ValueError, match=r"."):
        other.receive("mine", sent, 0.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "end", "send", "cut", "wait"]),
            st.sampled_from(["a", "b"]),
            st.integers(1, 500),
        ),
        max_size=40,
    )
)
def test_the_sum_of_all_changes_is_what_the_other_uses(
    steps: list[tuple[str, str, int]],
) -> None:
    mine, other, now = made(), made(2), 0.0
    in_flight: dict[str, list[int]] = {"a": [], "b": []}
    received = dict.fromkeys(in_flight, 0.0)
    known = dict.fromkeys(in_flight, 0.0)

    def apply(changes: list[Change]) -> None:
        for name, use in changes:
            totals[name] = Use(*map(sum, zip(totals[name], use, strict=True)))
            known[name] += use.received

    totals = dict.fromkeys(in_flight, Use())
    for step, name, number in steps:
        if step == "begin":
            mine.begin(name, number, number, now)
            in_flight[name].append(number)
            received[name] += number
        elif step == "end" and in_flight[name]:
            sent = in_flight[name].pop()
            mine.end(name, sent, sent, -sent / 2, now)
            received[name] -= sent / 2
        elif step == "send":
            apply(other.receive("mine", mine.encoded(now), now))
        elif step == "cut":
            apply(other.left("mine"))
        else:
            now += 2.0
            for amounts in (received, known):
                for each in amounts:
                    amounts[each] *= 2.0 ** (-2.0 / HALF_LIFE)
    apply(other.receive("mine", mine.encoded(now), now))
    for name, requests in in_flight.items():
        assert totals[name].requests == len(requests)
        assert totals[name].tokens == totals[name].charged == sum(requests)
        assert known[name] == pytest.approx(received[name], abs=1.0 + len(steps))
