"""The time limit of all requests of a run."""

from typing import Protocol

from epp.lab.simulation.virtual_loop import VirtualLoop, VirtualTimer


class Timed(Protocol):
    """A request with a time limit."""

    def time_out(self) -> None:
        """Called when the time limit has passed."""


class RequestTimeouts:
    """The time limit of all requests; one timer serves them, because they have the same limit."""

    def __init__(self, seconds: float, loop: VirtualLoop) -> None:
        self._seconds = seconds
        self._loop = loop
        self._deadlines: dict[Timed, float] = {}
        self._timer: VirtualTimer | None = None

    def add(self, client: Timed) -> None:
        """Start the time limit of a request that is sent now."""
        deadline = self._loop.time() + self._seconds
        self._deadlines[client] = deadline
        if self._timer is None:
            self._timer = self._loop.set_timer(deadline, self._check)

    def remove(self, client: Timed) -> None:
        """Drop the time limit of a request that has ended."""
        self._deadlines.pop(client, None)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._deadlines:
            client, deadline = next(iter(self._deadlines.items()))
            if deadline > now:
                self._timer = self._loop.set_timer(deadline, self._check)
                return
            del self._deadlines[client]
            client.time_out()
