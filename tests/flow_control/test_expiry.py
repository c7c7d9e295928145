"""Requests whose time is over together are turned away in turns of the loop."""

from flow_control.driven import Driven

from epp.flow_control import Outcome

MANY = 200


def test_requests_whose_time_is_over_together_leave_in_several_turns() -> None:
    epp = Driven()
    with epp.loop.running():
        epp.use(epp.settings(epp.band(ttl_seconds=10.0)))
        asked = [epp.ask(f"r-{n}") for n in range(MANY)]
        epp.loop.settle()
        (ring,) = [each for each in epp.loop.timers if not each.cancelled() and each.when() == 10.0]
        epp.loop.now = ring.when()
        epp.loop.timers.remove(ring)
        ring._callback(*ring._args)  # type: ignore[attr-defined]  # this one turn alone
        in_one_turn = sum(bool(each.ended) for each in asked)
        epp.loop.advance(0.0)
    assert 0 < in_one_turn < MANY / 2
    assert [each.ended for each in asked] == [[Outcome.EVICTED_TTL]] * MANY
    assert epp.loop.now == 10.0
