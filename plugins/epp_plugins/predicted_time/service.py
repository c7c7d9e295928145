"""Service time as a function of a request's tokens, learned over the whole fleet.

For ``v`` units of uncached tokens and ``n`` requests beside it, an endpoint of the fleet's speed
takes::

    x = o + s * v + g * v * n / 10

``o``, ``s`` and ``g`` are the weighted least squares over all samples, of which older ones count
less. Samples enter sums (the normal equations); the equations are solved once in several samples.
"""

from collections.abc import Sequence

from epp_plugins.predicted_time.constants import Constants
from epp_plugins.predicted_time.state_file import ServiceState

_PARALLEL = 10.0
"""Requests beside one for which ``g`` is the additional time of a unit."""
_MOST_SECONDS = 1e5
"""Most that a coefficient may be."""
_EARLY = 32
"""So many samples are each followed by a solution."""
_TINY = 1e-12


class ServiceModel:
    """The fleet's service time in one mode.

    Args:
        constants: Of the model.
    """

    __slots__ = ("_moments", "_right", "_since", "base", "constants", "crowd", "samples", "unit")

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.base = constants.prior_base_seconds
        """Seconds of an empty prompt, o."""
        self.unit = constants.prior_unit_seconds
        """Seconds of a unit of tokens, s."""
        self.crowd = 0.0
        """Further seconds of a unit with ten requests beside it, g."""
        self.samples = 0
        """Samples so far."""
        self._since = 0
        self._moments = [0.0] * 6
        """Weighted sums of 1, v, vn, v*v, v*vn, vn*vn, where vn = v * n / 10."""
        self._right = [0.0] * 3
        """Weighted sums of y, v*y, vn*y."""

    def predict(self, units: float, beside: float) -> float:
        """Return the seconds that ``units`` take with ``beside`` requests beside them."""
        return self.base + units * (self.unit + self.crowd * beside / _PARALLEL)

    def per_unit(self, beside: float) -> float:
        """Return the seconds of one unit with ``beside`` requests beside it."""
        return self.unit + self.crowd * beside / _PARALLEL

    def learn(
        self, units: float, beside: float, predicted: float, seconds: float, every: int
    ) -> bool:
        """Add a sample; return whether the coefficients have changed.

        Args:
            units: Uncached tokens in units.
            beside: Requests beside it.
            predicted: :meth:`predict` of them.
            seconds: What it took, as if by an endpoint of the fleet's speed.
            every: Samples from one solution to the next.
        """
        constants = self.constants
        weight = 1.0 / (constants.weight_floor_seconds + predicted)
        keep = constants.forgetting
        weighted_units = weight * units
        crowd = units * beside / _PARALLEL
        weighted_crowd = weight * crowd
        one, u, c, uu, uc, cc = self._moments
        self._moments = [
            one * keep + weight,
            u * keep + weighted_units,
            c * keep + weighted_crowd,
            uu * keep + weighted_units * units,
            uc * keep + weighted_units * crowd,
            cc * keep + weighted_crowd * crowd,
        ]
        first, second, third = self._right
        self._right = [
            first * keep + weight * seconds,
            second * keep + weighted_units * seconds,
            third * keep + weighted_crowd * seconds,
        ]
        self.samples += 1
        self._since += 1
        if self._since < every and self.samples > _EARLY:
            return False
        self._since = 0
        self._solve()
        return True

    def _solve(self) -> None:
        prior = self.constants.prior_weight
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
        """Return what was learned."""
        one, u, c, uu, uc, cc = self._moments
        first, second, third = self._right
        return ServiceState((one, u, c, uu, uc, cc), (first, second, third), self.samples)

    def restore(self, state: ServiceState) -> None:
        """Continue from what :meth:`state` returned."""
        self._moments, self._right = list(state.moments), list(state.right)
        self.samples = state.samples
        if self.samples:
            self._solve()


def _solution(
    matrix: Sequence[Sequence[float]], right: Sequence[float], kept: Sequence[int]
) -> list[float] | None:
    """Solve for the coefficients ``kept``; the others are 0. None if there is no solution."""
    rows = [[*(matrix[i][j] for j in kept), right[i]] for i in kept]
    size = len(kept)
    for i in range(size):  # positive definite, so without pivoting
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
