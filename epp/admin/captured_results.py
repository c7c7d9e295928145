"""Packs the results of a decision's profiles, because most of them are never read.

Packing 40 scores takes 0.5 us. Keeping their lists would take twice as long, because new lists
would then be created in memory that is not in the CPU's caches. For a sole profile that scored all
candidates, only the numbers are packed (:data:`SoleResult`); its texts come from its configuration.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from epp.observability import printable
from epp.scheduling import (
    NO_SCORES,
    ProfileResult,
    SchedulingResult,
    ScoreColumns,
    ScoredEndpoints,
    described,
)

SoleResult = tuple[str, Sequence[tuple[str, float]], str, bytes]
"""Name of a profile that scored all candidates and picked one, its scorers with their weights, the
picked endpoint's name, and the totals with the scorers' columns, packed."""

ProfileFields = tuple[
    str,
    Mapping[str, Sequence[str]],
    Sequence[str] | None,
    Sequence[float],
    ScoreColumns,
    Sequence[str],
    Sequence[float],
    str,
]
"""The fields of a :class:`CapturedProfile`."""


class CapturedProfile(msgspec.Struct, frozen=True, eq=False, array_like=True):
    """The result of one profile; packed as the tuple of its fields."""

    name: str
    removed: Mapping[str, Sequence[str]]
    """Names of the endpoints that each filter removed, by filter."""
    endpoints: Sequence[str] | None
    """Names of the scored endpoints; None for all candidates."""
    totals: Sequence[float]
    scores: ScoreColumns
    picked: Sequence[str]
    """Names of the picked endpoints, best first."""
    preference: Sequence[float]
    """Amounts that flow control added to the totals; empty if it added none."""
    error: str


class Packed(msgspec.Struct, frozen=True, eq=False, array_like=True):
    """The packed part of a decision, as the tuple of its fields."""

    profiles: Sequence[CapturedProfile] = ()
    shadow_profiles: Sequence[CapturedProfile] = ()


_pack: Final = msgspec.msgpack.Encoder(enc_hook=float).encode  # scores may be of any number class
_unpack: Final = msgspec.msgpack.Decoder(Packed).decode
_unpack_numbers: Final = msgspec.msgpack.Decoder(
    tuple[Sequence[float], Sequence[Sequence[float]]]
).decode
NOTHING: Final = _pack(Packed())


def sole_result(result: SchedulingResult, candidates: int) -> SoleResult | None:
    """Return a result in the form for sole profiles; None if it has to be packed.

    Args:
        result: The result.
        candidates: Number of endpoints before the filters.
    """
    profiles = result.profiles
    if len(profiles) != 1:
        return None
    profile = profiles[result.primary]
    scored, picked = profile.scored, profile.endpoints
    if (
        type(scored) is not ScoredEndpoints
        or len(picked) != 1
        or profile.removed
        or profile.preference
        or profile.error is not None
    ):
        return None
    totals = scored.scores
    if len(totals) != candidates:
        return None
    try:
        scorers, columns = profile.scores
        if len(columns) != len(scorers):
            return None
        packed = _pack((totals, columns))
    except Exception:  # invalid numbers of a plugin; packed_results() records the error
        return None
    return profile.profile, scorers, picked[0].endpoint.name, packed


def unpacked(packed: bytes, sole: SoleResult | None) -> Packed:
    """Return the results of a decision.

    Args:
        packed: The packed results.
        sole: The result of the only profile; None if it is packed.
    """
    if sole is not None:
        name, scorers, picked, numbers = sole
        totals, columns = _unpack_numbers(numbers)
        fields: ProfileFields = (name, {}, None, totals, (scorers, columns), (picked,), (), "")
        packed = packed_results([fields], ())
    return _unpack(packed)


def packed_results(profiles: Sequence[ProfileFields], shadows: Sequence[ProfileFields]) -> bytes:
    """Pack the results of profiles; results that cannot be packed are replaced by the error."""
    try:
        return _pack((profiles, shadows))
    except Exception as error:  # invalid numbers or texts of a plugin
        failed = f"it cannot be recorded: {printable(described(error))}"
        return _pack(([unchosen_profile(each[0], {}, failed) for each in profiles], ()))


def captured_profile(result: ProfileResult, candidates: int) -> ProfileFields:
    """Return the fields of the captured result of a profile.

    Args:
        result: The result.
        candidates: Number of endpoints before the filters.
    """
    scored, picked = result.scored, result.endpoints
    if type(scored) is ScoredEndpoints:
        endpoints, totals = scored.endpoints, scored.scores
    else:  # the result of a plugin
        endpoints = [each.endpoint for each in scored]
        totals = [each.score for each in scored]
    return (
        result.profile,
        result.removed,
        None if len(totals) == candidates else [each.name for each in endpoints],
        totals,
        result.scores,
        [each.endpoint.name for each in picked],
        result.preference,
        "" if result.error is None else printable(str(result.error)),
    )


def unchosen_profile(name: str, removed: Mapping[str, Sequence[str]], error: str) -> ProfileFields:
    """Return the fields of a profile that found no endpoint."""
    return (name, removed, (), (), NO_SCORES, (), (), printable(error))
