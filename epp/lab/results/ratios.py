"""The ratio of two measurements, with a confidence interval.

Runs of two policies with one seed have the same traffic: they are a pair, and their ratio does not
contain the effect of the traffic. The interval is Student's t on the logarithms of the ratios:

- logarithms, because a ratio and its inverse are then equally far from 1, and because latencies
  are skewed and the logarithms of their ratios are not;
- Student's t and not a bootstrap, because there are few seeds: a percentile bootstrap of five
  values covers the truth in about 85 of 100 cases where 95 are promised.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from epp.lab.results.student_t import two_sided_quantile

CONFIDENCE = 0.95
"""Probability that an interval covers the true ratio."""

NEGLIGIBLE = 0.005
"""A smaller difference is ignored, however certain: simulations repeat to the last digit."""


class RatioVerdict(StrEnum):
    """The conclusion from a ratio's interval."""

    BETTER = "better"
    """The whole interval lies on the better side of 1."""
    WORSE = "worse"
    """The whole interval lies on the worse side of 1."""
    NO_DIFFERENCE = "no difference"
    """The interval contains 1: the difference is within the noise; or it is negligible."""
    TOO_FEW_SEEDS = "too few seeds"
    """There is no interval: it takes two pairs."""
    NO_VALUE = "no value"
    """There is no ratio: a value is missing or 0."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Geometric mean of paired ratios, and its interval."""

    mean: float
    """Geometric mean of the ratios; above 1: larger than the baseline."""
    low: float | None
    """Lower end of the interval; None with one pair."""
    high: float | None
    """Upper end of the interval; None with one pair."""
    pairs: int
    """Number of pairs; of samples that are not paired, size of the smaller."""

    @classmethod
    def of(
        cls, pairs: Iterable[tuple[float | None, float | None]], confidence: float = CONFIDENCE
    ) -> "Ratio | None":
        """Return the ratio of pairs (value, baseline).

        None is returned if there are no pairs, or a value is missing or not positive: leaving out
        such pairs alone would flatter the side that fails in them.
        """
        logarithms = []
        for value, baseline in pairs:
            if not value or not baseline or value < 0 or baseline < 0:
                return None
            logarithms.append(math.log(value / baseline))
        if not logarithms:
            return None
        mean = statistics.fmean(logarithms)
        count = len(logarithms)
        if count == 1:
            return cls(math.exp(mean), None, None, 1)
        error = statistics.stdev(logarithms) / math.sqrt(count)
        half = two_sided_quantile(confidence, count - 1) * error
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count)

    @classmethod
    def of_independent(
        cls,
        values: Sequence[float],
        baselines: Sequence[float],
        confidence: float = CONFIDENCE,
    ) -> "Ratio | None":
        """Return the ratio of two samples that are not paired, by Welch's t on the logarithms.

        None is returned if one is empty or has a value that is not positive.
        """
        if not values or not baselines or min(*values, *baselines) <= 0:
            return None
        samples = [[math.log(value) for value in each] for each in (values, baselines)]
        difference = statistics.fmean(samples[0]) - statistics.fmean(samples[1])
        pairs = min(map(len, samples))
        if pairs == 1:
            return cls(math.exp(difference), None, None, 1)
        variances = [statistics.variance(each) / len(each) for each in samples]
        total = sum(variances)
        # Welch-Satterthwaite, rounded down: a wider interval.
        parts = sum(v**2 / (len(e) - 1) for v, e in zip(variances, samples, strict=True))
        degrees = max(int(total**2 / parts), 1) if parts else len(samples[0]) + len(samples[1]) - 2
        half = two_sided_quantile(confidence, degrees) * math.sqrt(total)
        return cls(
            math.exp(difference), math.exp(difference - half), math.exp(difference + half), pairs
        )

    def verdict(self, *, higher_is_better: bool) -> RatioVerdict:
        """Return the conclusion from the interval."""
        if self.low is None or self.high is None:
            return RatioVerdict.TOO_FEW_SEEDS
        if self.low <= 1.0 <= self.high or abs(self.mean - 1.0) < NEGLIGIBLE:
            return RatioVerdict.NO_DIFFERENCE
        return RatioVerdict.BETTER if (self.low > 1.0) is higher_is_better else RatioVerdict.WORSE
