"""The results of a decision's profiles, packed, because most of them are never read.

40 scores take 0.5 us to pack, and their lists would take twice as long again: memory that is kept
is replaced by memory that is not in the CPU's caches. The result of a sole profile without filters
is a :data:`SoleResult`, whose numbers are packed as doubles. All others are packed as MessagePack,
which takes more instructions.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct, unpack
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
picked endpoint's name, and the totals followed by each scorer's column, as native doubles."""

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

_DOUBLE_BYTES: Final = 8


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
    """What flow control added to the totals; empty for nothing."""
    error: str


class Packed(msgspec.Struct, frozen=True, eq=False, array_like=True):
    """What is packed of a decision, as the tuple of its fields."""

    profiles: Sequence[CapturedProfile] = ()
    shadow_profiles: Sequence[CapturedProfile] = ()


_pack: Final = msgspec.msgpack.Encoder(enc_hook=float).encode  # scores may be of any number class
_unpack: Final = msgspec.msgpack.Decoder(Packed).decode
NOTHING: Final = _pack(Packed())


@lru_cache(maxsize=64)
def _doubles(count: int) -> Callable[..., bytes]:
    return Struct(f"{count}d").pack


def sole_result(result: SchedulingResult, candidates: int) -> SoleResult | None:
    """Return the result of a sole profile; None for any other, which has to be packed.

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
    try:
        scorers, columns = profile.scores
        numbers = [*scored.scores]
        for column in columns:
            numbers += column
        if len(scored.scores) != candidates or len(numbers) != candidates * (1 + len(scorers)):
            return None
        packed = _doubles(len(numbers))(*numbers)
    except Exception:  # a plugin's numbers; packed_results() says what is wrong
        return None
    return profile.profile, scorers, picked[0].endpoint.name, packed


def _fields_of(sole: SoleResult, candidates: int) -> ProfileFields:
    name, scorers, picked, packed = sole
    numbers = unpack(f"{len(packed) // _DOUBLE_BYTES}d", packed)
    totals, *columns = [
        numbers[start : start + candidates] for start in range(0, len(numbers), candidates)
    ]
    return (name, {}, None, totals, (scorers, columns), (picked,), (), "")


def unpacked(packed: bytes, sole: SoleResult | None, candidates: int) -> Packed:
    """Return the results of a decision.

    Args:
        packed: Those that are packed.
        sole: The result of the only profile; None if it is packed.
        candidates: Number of endpoints before the filters.
    """
    if sole is not None:
        packed = packed_results([_fields_of(sole, candidates)], ())
    return _unpack(packed)


def packed_results(profiles: Sequence[ProfileFields], shadows: Sequence[ProfileFields]) -> bytes:
    """Return the results of profiles, packed."""
    try:
        return _pack((profiles, shadows))
    except Exception as error:  # a plugin's numbers and texts
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
