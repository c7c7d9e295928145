"""Session listeners are called once before the first attempt and once after the last."""

from flow_control.driven import Driven

from epp.flow_control.plugins import SessionListener


class Diary(SessionListener):
    """Notes when sessions begin and end, and how many requests were dispatched by then."""

    type = "diary"

    def __init__(self, driven: Driven, *, fails: bool = False) -> None:
        self.name = "diary"
        self.notes: list[tuple[str, int]] = []
        self._driven = driven
        self._fails = fails

    def session_began(self, now: float) -> None:
        self.notes.append(("began", len(self._driven.world.dispatched)))
        if self._fails:
            raise ZeroDivisionError

    def session_ended(self) -> None:
        self.notes.append(("ended", len(self._driven.world.dispatched)))


def held(*, fails: bool = False) -> tuple[Driven, Diary]:
    """Return flow control in which two requests have waited, and a listener of its sessions."""
    driven = Driven()
    diary = Diary(driven, fails=fails)
    listeners = driven.guards.guards("SessionListener", SessionListener, [diary])
    with driven.loop.running():
        driven.room(0)
        driven.use(driven.settings(listeners=listeners))
        driven.ask("first")
        driven.ask("second")
        driven.loop.settle()
    assert diary.notes == []  # there was no capacity, so no session
    with driven.loop.running():
        driven.room(5)
        driven.loop.settle()
    return driven, diary


def test_a_listener_is_notified_before_the_first_try_and_after_the_last() -> None:
    driven, diary = held()
    assert driven.world.dispatched == ["first", "second"]
    assert diary.notes == [("began", 0), ("ended", 2)]


def test_a_listener_that_fails_delays_no_request() -> None:
    driven, diary = held(fails=True)
    assert driven.world.dispatched == ["first", "second"]
    assert diary.notes == [("began", 0), ("ended", 2)]
