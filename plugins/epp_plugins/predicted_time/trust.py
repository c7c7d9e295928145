"""Decides whether predictions are good enough to choose an endpoint by.

Predictions are useful if they are closer to the measured times than one constant for all requests,
which depends neither on the prompt nor on the queue. So the mean error of the predictions is
compared with that of the running geometric mean of the times to the first token.

That mean follows a queue which all requests share, so in overload it is a good prediction, although
it says nothing about which server is better. So predictions must be clearly better than the mean
before they are used, and clearly worse before they cease to be used.
"""

from math import exp

from epp_plugins.predicted_time.constants import Constants
from epp_plugins.predicted_time.mode import FLOOR_SECONDS, MOST_ERROR

_LEAST_ERROR = 0.1
"""Minimum error of the constant, because with equal requests the constant is right as well."""


class Trust:
    """Compares the errors of the predictions with those of a constant."""

    __slots__ = ("_mean_log", "constant_error", "constants", "error", "is_given", "samples")

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self._mean_log = 0.0
        self.samples = 0
        self.error = 0.0
        """Mean |log(measured / predicted)|."""
        self.constant_error = 0.0
        """Mean |log(measured / constant)|."""
        self.is_given = constants.trust_samples == 0
        """Whether predictions are used."""

    @property
    def constant_seconds(self) -> float:
        """The constant: the geometric mean of recent times."""
        return exp(self._mean_log) - FLOOR_SECONDS

    @property
    def ratio(self) -> float | None:
        """Error of the predictions divided by that of the constant; None until known."""
        if self.samples < self.constants.trust_samples or self.samples < 2:  # noqa: PLR2004 - of two
            return None
        return self.error / max(self.constant_error, _LEAST_ERROR)

    def learn(self, measured: float, predicted: float) -> bool:
        """Compare a prediction with the measured time; return whether ``is_given`` has changed.

        Args:
            measured: :func:`~epp_plugins.predicted_time.mode.logarithm` of the measured time.
            predicted: The same function of the predicted time.
        """
        constants = self.constants
        self.samples += 1
        share = constants.trust_share
        if self.samples * share < 1.0:
            share = 1.0 / self.samples
        if self.samples > 1:
            error = min(abs(measured - predicted), MOST_ERROR)
            constant = min(abs(measured - self._mean_log), MOST_ERROR)
            self.error += share * (error - self.error)
            self.constant_error += share * (constant - self.constant_error)
        self._mean_log += share * (measured - self._mean_log)
        if self.samples < constants.trust_samples:
            return False
        ratio = self.error / max(self.constant_error, _LEAST_ERROR)
        if self.is_given:
            is_given = ratio <= constants.distrust_above
        else:
            is_given = ratio < constants.trust_below
        has_changed = is_given is not self.is_given
        self.is_given = is_given
        return has_changed
