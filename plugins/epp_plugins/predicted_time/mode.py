"""Decides which of the two modes describes the fleet's engines."""

from math import log

from epp_plugins.predicted_time.constants import Constants

FLOOR_SECONDS = 0.02
"""Added to times before they are compared, because shorter times cannot be measured."""
MOST_ERROR = 5.0
"""Maximum error, as a natural logarithm; larger errors count as this."""
_MOST_SECONDS = 1e5
_LEAST = log(FLOOR_SECONDS)


def logarithm(seconds: float) -> float:
    """Return log(seconds + 0.02) for any float; NaN and negative times count as 0."""
    if not seconds > 0.0:  # also NaN
        return _LEAST
    return log((seconds if seconds < _MOST_SECONDS else _MOST_SECONDS) + FLOOR_SECONDS)


class ModeChoice:
    """Chooses between serial and slots mode by the errors of their predictions."""

    __slots__ = ("constants", "is_serial", "serial_error", "slots_error")

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.is_serial = True
        self.serial_error = 0.5
        """Mean error of the predictions in serial mode, over requests for which the modes
        differ."""
        self.slots_error = 0.5

    def learn(
        self, seconds: float, serial: float, slots: float, *, is_overdue: bool = False
    ) -> bool:
        """Compare both predictions with the measured time; return whether the mode has changed.

        Args:
            seconds: :func:`logarithm` of the time to the first token, or until now if it is
                overdue.
            serial: :func:`logarithm` of the prediction in serial mode.
            slots: :func:`logarithm` of the prediction in slots mode.
            is_overdue: Whether the first token is still missing.
        """
        constants = self.constants
        if abs(serial - slots) < constants.mode_difference:
            return False
        share = constants.overdue_share if is_overdue else constants.mode_share
        serial_error, slots_error = abs(seconds - serial), abs(seconds - slots)
        self.serial_error += share * (min(serial_error, MOST_ERROR) - self.serial_error)
        self.slots_error += share * (min(slots_error, MOST_ERROR) - self.slots_error)
        if self.is_serial:
            has_changed = self.slots_error < constants.mode_enter * self.serial_error
        else:
            has_changed = self.slots_error > constants.mode_leave * self.serial_error
        if has_changed:
            self.is_serial = not self.is_serial
        return has_changed
