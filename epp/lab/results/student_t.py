"""Student's t distribution for whole degrees of freedom, from its closed form.

A. & S.: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
"""

import math

_BISECTIONS = 80


def probability_within(t: float, degrees: int) -> float:
    """Return the probability that a value of the distribution lies between -t and t."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine_squared = math.sin(angle), math.cos(angle) ** 2
    is_odd = degrees % 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0 if degrees == 1 else term
    for number in range(2 + is_odd, degrees - 1, 2):
        term *= cosine_squared * (number - 1) / number
        total += term
    if is_odd:
        return 2 / math.pi * (angle + sine * total)
    return sine * total


def two_sided_quantile(confidence: float, degrees: int) -> float:
    """Return t so that a value lies between -t and t with probability `confidence`.

    Args:
        confidence: Above 0.0 and below 1.0.
        degrees: Degrees of freedom, at least 1.
    """
    high = 1.0
    while probability_within(high, degrees) < confidence:
        high *= 2
    low = 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if probability_within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2
