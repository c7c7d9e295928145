"""The place of one request in the load of an endpoint."""

from epp.scheduling.errors import ReservationError
from epp.scheduling.load import EndpointLoad


class Reservation:
    """One request's place on one endpoint, from the decision to the end of its stream."""

    __slots__ = ("_load",)

    def __init__(self, load: EndpointLoad, now: float) -> None:
        self._load: EndpointLoad | None = load
        load.start(now)

    def release(self, now: float) -> None:
        """Release the place.

        Raises:
            ReservationError: It was released before.
        """
        load = self._load
        if load is None:
            raise ReservationError("a reservation was released twice")
        self._load = None
        load.end(now)

    def move(self, load: EndpointLoad, now: float) -> None:
        """Move the place to the endpoint that really served the request.

        Raises:
            ReservationError: It was released before.
        """
        held = self._load
        if held is None:
            raise ReservationError("a released reservation cannot move")
        if held is not load:
            held.end(now)
            load.start(now)
            self._load = load
