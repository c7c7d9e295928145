"""Learns from a server's metrics pages how many requests it runs at once."""

from epp_plugins.predicted_time.constants import Constants


class SlotCount:
    """Estimates the number of slots of one server.

    A server with waiting requests runs as many as it can. One page may show a moment between two
    steps, so two in a row are needed. A server without a queue may have more slots than estimated,
    so one request more is tried from time to time.
    """

    __slots__ = ("_full_pages", "_running", "_was_waiting")

    def __init__(self) -> None:
        self._was_waiting = False
        """Whether requests waited on the last page."""
        self._running = 0.0
        """Running requests on the last page with waiting ones."""
        self._full_pages = 0
        """Number of pages on which the server was full and had no queue."""

    def page(self, slots: float, waiting: float, running: float, constants: Constants) -> float:
        """Return the new number of slots; ``slots`` is that before the page, 0 if unknown."""
        if waiting > 0.0 and running > 0.0:
            if self._was_waiting:
                seen = min(running, self._running)
                share = 1.0 if seen > slots else constants.decode_share
                slots += share * (seen - slots)
            self._running = running
        elif slots and running > slots:
            slots = running
        self._was_waiting = waiting > 0.0
        return slots

    def probes(self, slots: float, waiting: float, in_flight: int, constants: Constants) -> bool:
        """Return whether one request more than ``slots`` may be sent until the next page."""
        if not slots or waiting > 0.0 or in_flight < slots:
            return False
        self._full_pages += 1
        count, share = self._full_pages - constants.probe_always, constants.probe_share
        return count <= 0 or int(count * share) > int((count - 1) * share)
