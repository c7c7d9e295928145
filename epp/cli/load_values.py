"""Parses values of options of ``epp load``: stages, and weights of labels."""

from epp.cli.units import duration
from epp.lab.load import label_headers
from epp.lab.results import Slo
from epp.lab.traffic import Labels, RatePiece, RequestSlo

_LABELS = ("tenants", "objectives", "adapters")


def stage(text: str) -> RatePiece:
    """Parse ``RATE:DURATION`` or ``FROM-TO:DURATION``; a duration without a unit is in seconds.

    Raises:
        ValueError: ``text`` is invalid.
    """
    rates, _, length = text.partition(":")
    first, _, last = rates.partition("-")
    try:
        numbers = float(first), float(last or first)
        seconds = float(length) if length.replace(".", "", 1).isdecimal() else duration(length)
    except ValueError:
        raise ValueError(
            f"{text!r} is not RATE:SECONDS or FROM-TO:SECONDS, such as 5:30 or 5-50:60"
        ) from None
    return RatePiece(seconds, *numbers)


def weights(text: str) -> dict[str, float]:
    """Parse ``NAME=WEIGHT,NAME=WEIGHT``; a name alone has the weight 1, and may be empty.

    Raises:
        ValueError: ``text`` is invalid.
    """
    parsed: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        if not equals:
            name, number = part, "1"
        try:
            parsed[name.strip()] = float(number)
        except ValueError:
            raise ValueError(f"{part!r} is not NAME=WEIGHT, as in alice=3,bob=1") from None
    return parsed


def slo_header_fields(slo: Slo) -> tuple[tuple[str, str], ...]:
    """Return the headers from which the endpoint picker reads these objectives."""
    return label_headers(Labels(slo=RequestSlo(slo.ttft_seconds, slo.tpot_seconds)))


def labels(**texts: str | None) -> dict[str, dict[str, float]]:
    """Return the weights of the labels that are given.

    Raises:
        ValueError: A text is invalid; the message names the option.
    """
    given: dict[str, dict[str, float]] = {}
    for name in _LABELS:
        if (text := texts[name]) is not None:
            try:
                given[name] = weights(text)
            except ValueError as error:
                raise ValueError(f"--{name}: {error}") from None
    return given
