"""One request that was sent, as the model knows it."""

from itertools import count
from typing import TYPE_CHECKING

from epp_plugins.predicted_time.constants import UNIT_TOKENS

if TYPE_CHECKING:
    from epp_plugins.predicted_time.endpoint import EndpointModel

_numbers = count()


class InFlight:
    """One request at one endpoint."""

    __slots__ = (
        "endpoint",
        "first_at",
        "is_overdue",
        "number",
        "predicted_serial",
        "predicted_slots",
        "sent_at",
        "serial_logarithm",
        "slot_at",
        "slot_beside",
        "slots_logarithm",
        "units",
    )

    def __init__(self, endpoint: "EndpointModel", units: float, sent_at: float) -> None:
        self.endpoint = endpoint
        self.number = next(_numbers)
        """Names it to other endpoint pickers."""
        self.units = units
        """Uncached tokens, in units."""
        self.sent_at = sent_at
        self.slot_at: float | None = None
        """When it got a slot; None while it waits for one."""
        self.slot_beside = 0
        """Requests in flight there beside it when it got its slot."""
        self.first_at: float | None = None
        """When its first token came; None before, and once the request has ended."""
        self.predicted_serial = 0.0
        """Predicted seconds from being sent to the first token, in serial mode."""
        self.predicted_slots = 0.0
        """The same in slots mode."""
        self.serial_logarithm = 0.0
        """:func:`~epp_plugins.predicted_time.mode.logarithm` of the prediction in serial mode."""
        self.slots_logarithm = 0.0
        """The same in slots mode."""
        self.is_overdue = False

    @property
    def tokens(self) -> float:
        """Its uncached tokens."""
        return self.units * UNIT_TOKENS

    @property
    def is_pending(self) -> bool:
        """Whether it is in flight and before its first token."""
        return self in self.endpoint.pending
