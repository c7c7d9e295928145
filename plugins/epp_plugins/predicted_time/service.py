"""Service time as a function of a request's tokens, learned over the whole fleet.

For ``v`` units of uncached tokens and ``n`` other requests in flight, an endpoint of the fleet's
speed takes::

    x = o + s * v + g * v * n / 10

``o``, ``s`` and ``g`` are the weighted least-squares fit to all samples, of which older ones weigh
less. Samples are added to sums (the normal equations), which are solved every several samples.
"""

from collections.abc import Sequence

from epp_plugins.predicted_time.constants import Constants
from epp_plugins.predicted_time.state_file import ServiceState

_PARALLEL = 10.0
"""Number of other requests at which a unit takes ``g`` seconds more."""
_MOST_SECONDS = 1e5
"""Maximum of a coefficient."""
_MOST_SCALE = 1e6
_MOST_UNITS_FACTOR = 10.0
"""A prompt longer than this multiple of the mean weighs less, by the square of the excess ratio."""
_MEAN_SHARE = 0.02
_TINY = 1e-12


class ServiceModel:
    """The fleet's service time in one mode.

    Args:
        constants: Constants of the model.
    """

    __slots__ = (
        "_mean_units",
        "_moments",
        "_right",
        "_scale",
        "base",
        "constants",
        "crowd",
        "samples",
        "unit",
    )

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.base = constants.prior_base_seconds
        """Seconds for an empty prompt, o."""
        self.unit = constants.prior_unit_seconds
        """Seconds per unit of tokens, s."""
        self.crowd = 0.0
        """Additional seconds per unit with ten other requests in flight, g."""
        self.samples = 0
        """Samples so far."""
        self._scale = 1.0
        """Weight of the latest sample in the sums, before the weight for its size."""
        self._mean_units = 1.0
        """Mean units per sample."""
        self._moments = [0.0] * 6
        """Weighted sums of 1, v, vn, v*v, v*vn, vn*vn, where vn = v * n / 10."""
        self._right = [0.0] * 3
        """Weighted sums of y, v*y, vn*y."""

    def predict(self, units: float, beside: float) -> float:
        """Return the seconds that ``units`` take with ``beside`` other requests in flight."""
        return self.base + units * (self.unit + self.crowd * beside / _PARALLEL)

    def per_unit(self, beside: float) -> float:
        """Return the seconds per unit with ``beside`` other requests in flight."""
        return self.unit + self.crowd * beside / _PARALLEL

    def learn(self, units: float, beside: float, predicted: float, seconds: float) -> None:
        """Add a sample; it counts from the next :meth:`solve`.

        Args:
            units: Uncached tokens in units.
            beside: Other requests in flight.
            predicted: Result of :meth:`predict` for these.
            seconds: Measured time, divided by the endpoint's slowness.
        """
        constants = self.constants
        # Each sample weighs 1 / forgetting times as much as the one before, so the sums need not be
        # multiplied each time: 0.5 us instead of 1.1.
        self._scale = scale = self._scale / constants.forgetting
        weight = scale / (constants.weight_floor_seconds + predicted)
        most_units = _MOST_UNITS_FACTOR * self._mean_units
        if units > most_units:  # one prompt must not outweigh all others by its size
            weight *= (most_units / units) ** 2
            self._mean_units += _MEAN_SHARE * (most_units - self._mean_units)
        else:
            self._mean_units += _MEAN_SHARE * (units - self._mean_units)
        weighted_units = weight * units
        moments, right = self._moments, self._right
        moments[0] += weight
        moments[1] += weighted_units
        moments[3] += weighted_units * units
        right[0] += weight * seconds
        right[1] += weighted_units * seconds
        if beside:
            crowd = units * beside / _PARALLEL
            weighted_crowd = weight * crowd
            moments[2] += weighted_crowd
            moments[4] += weighted_units * crowd
            moments[5] += weighted_crowd * crowd
            right[2] += weighted_crowd * seconds
        self.samples += 1
        if scale > _MOST_SCALE:
            self._rescale()

    def _rescale(self) -> None:
        scale, self._scale = self._scale, 1.0
        self._moments = [value / scale for value in self._moments]
        self._right = [value / scale for value in self._right]

    def solve(self) -> None:
        """Compute the coefficients from the samples so far."""
        prior = self.constants.prior_weight * self._scale
        priors = (self.constants.prior_base_seconds, self.constants.prior_unit_seconds, 0.0)
        one, u, c, uu, uc, cc = self._moments
        matrix = ((one + prior, u, c), (u, uu + prior, uc), (c, uc, cc + prior))
        right = [value + prior * known for value, known in zip(self._right, priors, strict=True)]
        # A negative time is noise: leave its term out, the least important first.
        for kept in ((0, 1, 2), (0, 1), (1,), (0,)):
            found = _solution(matrix, right, kept)
            if found is not None and all(value >= 0.0 for value in found):
                self.base, self.unit, self.crowd = (min(value, _MOST_SECONDS) for value in found)
                return

    def state(self) -> ServiceState:
        """Return the sums of all samples."""
        self._rescale()
        one, u, c, uu, uc, cc = self._moments
        first, second, third = self._right
        return ServiceState((one, u, c, uu, uc, cc), (first, second, third), self.samples)

    def restore(self, state: ServiceState) -> None:
        """Continue from what :meth:`state` returned."""
        self._moments, self._right = list(state.moments), list(state.right)
        self.samples = state.samples
        if self.samples:
            self.solve()


def _solution(
    matrix: Sequence[Sequence[float]], right: Sequence[float], kept: Sequence[int]
) -> list[float] | None:
    """Solve for the coefficients ``kept``; the others are 0. None if there is no solution."""
    rows = [[*(matrix[i][j] for j in kept), right[i]] for i in kept]
    size = len(kept)
    for i in range(size):  # the matrix is positive definite, so no pivoting is needed
        pivot = rows[i][i]
        if pivot <= _TINY:
            return None
        for k in range(i + 1, size):
            factor = rows[k][i] / pivot
            for j in range(i, size + 1):
                rows[k][j] -= factor * rows[i][j]
    found = [0.0] * 3
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * found[kept[j]] for j in range(i + 1, size))
        found[kept[i]] = (rows[i][size] - rest) / rows[i][i]
    return found
