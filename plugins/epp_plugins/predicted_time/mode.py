"""Which of the two modes describes the fleet's engines."""

from math import log

from epp_plugins.predicted_time.constants import Constants

_FLOOR_SECONDS = 0.02
"""Added to both times before they are compared: what happens faster is not measured."""
_MOST_ERROR = 5.0


def log_error(seconds: float, predicted: float) -> float:
    """Return |log(seconds / predicted)|, limited and insensitive to a few milliseconds."""
    ratio = (max(0.0, seconds) + _FLOOR_SECONDS) / (max(0.0, predicted) + _FLOOR_SECONDS)
    error = abs(log(ratio))
    return error if error < _MOST_ERROR else _MOST_ERROR  # also if it is NaN


class ModeChoice:
    """Chooses between serial and slots by the errors of both."""

    __slots__ = ("constants", "is_serial", "serial_error", "slots_error")

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.is_serial = True
        self.serial_error = 0.5
        """Mean error of the serial predictions, where both differ."""
        self.slots_error = 0.5

    def learn(
        self, seconds: float, serial: float, slots: float, *, is_overdue: bool = False
    ) -> bool:
        """Compare both predictions with what was; return whether the mode has changed.

        Args:
            seconds: From being sent to the first token, or until now if it is overdue.
            serial: Predicted in serial mode.
            slots: Predicted in slots mode.
            is_overdue: Whether the first token is still missing.
        """
        constants = self.constants
        low, high = (serial, slots) if serial < slots else (slots, serial)
        if high + _FLOOR_SECONDS < (low + _FLOOR_SECONDS) * constants.mode_difference:
            return False
        share = constants.overdue_share if is_overdue else constants.mode_share
        self.serial_error += share * (log_error(seconds, serial) - self.serial_error)
        self.slots_error += share * (log_error(seconds, slots) - self.slots_error)
        if self.is_serial:
            has_changed = self.slots_error < constants.mode_enter * self.serial_error
        else:
            has_changed = self.slots_error > constants.mode_leave * self.serial_error
        if has_changed:
            self.is_serial = not self.is_serial
        return has_changed
