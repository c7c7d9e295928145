"""The field `arrivals` of a traffic description."""

from typing import Any, Literal

import msgspec

from epp.lab.traffic.arrivals import ArrivalProcess, RatePiece, constant_rate, on_off
from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.fields import DurationField, parse, seconds


class ArrivalFields(msgspec.Struct, frozen=True):
    """When conversations arrive: give `concurrency`, `rate` or `stages`."""

    process: Literal["poisson", "constant", "gamma"] = "poisson"
    rate: float | None = None
    cv: float | None = None
    stages: list[dict[str, Any]] | None = None
    repeat: bool = False
    on: DurationField | None = None
    off: DurationField | None = None
    concurrency: int | None = None


class StageFields(msgspec.Struct, frozen=True, rename={"first": "from", "last": "to"}):
    """A constant `rate`, or a ramp `from` one rate `to` another."""

    duration: DurationField
    rate: float | None = None
    first: float | None = None
    last: float | None = None


def parse_arrivals(document: object, where: str) -> int | ArrivalProcess:
    """Return the number of clients of a closed loop, or the process of an open one.

    Raises:
        TrafficError: A field is invalid, or fields contradict each other.
    """
    fields = parse(document, ArrivalFields, where)
    given = [
        name for name in ("concurrency", "rate", "stages") if getattr(fields, name) is not None
    ]
    if len(given) != 1:
        found = f"not {' and '.join(given)}" if given else "none is given"
        raise TrafficError(f"{where}: give one of concurrency, rate and stages; {found}")
    if fields.concurrency is not None:
        if fields.concurrency < 1:
            raise TrafficError(f"{where}.concurrency: {fields.concurrency} is not above 0")
        return fields.concurrency
    if (fields.process == "gamma") != (fields.cv is not None):
        raise TrafficError(
            f"{where}.cv: goes with process gamma, as in `{{process: gamma, rate: 5, cv: 3}}`"
        )
    cv = {"poisson": 1.0, "constant": 0.0}.get(fields.process, fields.cv or 0.0)
    pieces, repeats = _pieces(fields, where)
    try:
        return ArrivalProcess(pieces=pieces, repeats=repeats, cv=cv)
    except TrafficError as error:
        raise TrafficError(f"{where}: {error}") from None


def _pieces(fields: ArrivalFields, where: str) -> tuple[tuple[RatePiece, ...], bool]:
    if (fields.on is None) != (fields.off is None):
        raise TrafficError(f"{where}: on and off: give both or neither")
    if fields.stages is not None:
        if fields.on is not None:
            raise TrafficError(f"{where}: on and off go with rate, not with stages")
        pieces = (
            _stage(stage, f"{where}.stages[{number}]") for number, stage in enumerate(fields.stages)
        )
        return tuple(pieces), fields.repeat
    if fields.repeat:
        raise TrafficError(f"{where}.repeat: goes with stages, not with rate")
    rate = fields.rate or 0.0
    try:
        if fields.on is None or fields.off is None:
            return constant_rate(rate), False
        return on_off(rate, seconds(fields.on, "on"), seconds(fields.off, "off")), True
    except TrafficError as error:
        raise TrafficError(f"{where}: {error}") from None


def _stage(document: dict[str, Any], where: str) -> RatePiece:
    stage = parse(document, StageFields, where)
    given = tuple(each is not None for each in (stage.rate, stage.first, stage.last))
    if given not in {(True, False, False), (False, True, True)}:
        raise TrafficError(f"{where}: give rate, or from and to")
    first = stage.rate if stage.first is None else stage.first
    last = stage.rate if stage.last is None else stage.last
    length = seconds(stage.duration, f"{where}.duration")
    try:
        return RatePiece(length, first or 0.0, last or 0.0)
    except TrafficError as error:
        raise TrafficError(f"{where}: {error}") from None
