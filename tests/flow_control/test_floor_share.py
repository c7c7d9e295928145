"""Floor share of a low band that cannot dispatch for a while."""

from flow_control.driven import Driven

HIGH, LOW = 10, 0


def test_a_band_saves_up_nothing_while_it_fits_nowhere() -> None:
    driven = Driven()
    with driven.loop.running():
        bands = {HIGH: driven.band(floor_share=0.0), LOW: driven.band(floor_share=0.1)}
        driven.use(driven.settings(bands=bands))
        driven.world.unfit.add("stuck")
        for _ in range(20):
            driven.ask("low", "stuck", priority=LOW)
        for _ in range(400):
            driven.ask("high", priority=HIGH)
        driven.room(360)
        driven.loop.settle()
        assert driven.world.dispatched == ["high"] * 360
        driven.world.unfit.clear()
        driven.room(390)
        driven.loop.settle()
    then = driven.world.dispatched[360:]
    assert len(then) == 30
    assert then[:4].count("low") <= 2
    assert 3 <= then.count("low") <= 5
