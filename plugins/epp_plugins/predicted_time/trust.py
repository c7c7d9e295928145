"""Whether predictions are good enough to choose by.

A prediction is worth something if it is nearer to the truth than one constant for all requests,
which knows neither the prompt nor the queue. So the mean error of the predictions is compared with
that of the running geometric mean of the times to the first token.
"""

from math import exp, log

from epp_plugins.predicted_time.constants import Constants
from epp_plugins.predicted_time.mode import log_error

_LEAST_ERROR = 0.1
"""Errors below this are as good as any: with equal requests the constant is right, too."""
_LEAST_SECONDS, _MOST_SECONDS = 1e-3, 1e5


class Trust:
    """The errors of the predictions and of a constant, and what follows from them."""

    __slots__ = ("_mean_log", "constant_error", "constants", "error", "is_given", "samples")

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self._mean_log = 0.0
        self.samples = 0
        self.error = 0.0
        """Mean |log(measured / predicted)|."""
        self.constant_error = 0.0
        """The same of the constant."""
        self.is_given = constants.trust_samples == 0
        """Whether predictions are used."""

    @property
    def constant_seconds(self) -> float:
        """The constant: the geometric mean of the latest times."""
        return exp(self._mean_log)

    @property
    def ratio(self) -> float | None:
        """The error of the predictions over that of the constant; None before it is known."""
        if self.samples < self.constants.trust_samples or self.samples < 2:  # noqa: PLR2004 - of two
            return None
        return self.error / max(self.constant_error, _LEAST_ERROR)

    def learn(self, seconds: float, predicted: float) -> bool:
        """Compare a prediction with the measured time; return whether ``is_given`` has changed."""
        constants = self.constants
        self.samples += 1
        share = max(constants.trust_share, 1.0 / self.samples)
        if self.samples > 1:
            self.error += share * (log_error(seconds, predicted) - self.error)
            constant = log_error(seconds, self.constant_seconds)
            self.constant_error += share * (constant - self.constant_error)
        bounded = min(_MOST_SECONDS, max(_LEAST_SECONDS, seconds))
        self._mean_log += share * (log(bounded) - self._mean_log)
        if self.samples < constants.trust_samples:
            return False
        against = max(self.constant_error, _LEAST_ERROR)
        if self.is_given:
            is_given = self.error <= constants.distrust_above * against
        else:
            is_given = self.error < constants.trust_below * against
        has_changed = is_given is not self.is_given
        self.is_given = is_given
        return has_changed
