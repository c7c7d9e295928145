"""How full the pool is: of prefill and decode servers, the fuller stage counts.

Source: the reference's flow control, which splits a pool by the label ``llm-d.ai/role``.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from time import perf_counter

from epp.flow_control.plugins import SaturationDetector
from epp.scheduling import PLUGIN_FAULTS, Endpoint, Guard, GuardRails, PluginContractError

FULL = 1.0
"""The saturation from which on a pool is full."""

_ROLE = "llm-d.ai/role"
_STAGES: Mapping[str, tuple[bool, bool]] = {
    "encode": (False, False),
    "prefill": (True, False),
    "encode-prefill": (True, False),
    "decode": (False, True),
    "prefill-decode": (True, True),
    "encode-prefill-decode": (True, True),
    "both": (True, True),
}
"""Whether a role serves prefill and decode; any other, and none, is decode."""


def saturation_of(guard: Guard[SaturationDetector], endpoints: Sequence[Endpoint]) -> float | None:
    """Return what the detector says of ``endpoints``; None if it fails, or is left alone."""
    if guard.is_off:
        return None
    began = perf_counter()
    try:
        saturation = guard.plugin.saturation(endpoints)
        if not isinstance(saturation, int | float) or isnan(saturation):
            raise PluginContractError(f"saturation() returned {saturation!r}, which is no number")
    except PLUGIN_FAULTS as error:
        guard.failed(error, perf_counter() - began)
        return None
    guard.passed(perf_counter() - began)
    return saturation


class PoolSaturation:
    """The saturation of a pool that may have several stages.

    A detector that fails says nothing about the pool, which then has room.
    """

    def __init__(self, guard: Guard[SaturationDetector]) -> None:
        self._guard = guard
        self._pool: Sequence[Endpoint] | None = None
        self._stages: Sequence[tuple[str, Sequence[Endpoint]]] = ()
        self.by_stage: dict[str, float] = {}
        """What was measured last: ``prefill`` and ``decode``, as far as there are such servers."""

    def measure(self, pool: Sequence[Endpoint]) -> float:
        """Return how full ``pool`` is; 1.0 is full, as is a pool that serves nothing.

        Args:
            pool: A snapshot; its roles are looked at once per object.
        """
        if pool is not self._pool:
            self._pool = pool
            self._stages = _split(pool)
            self.by_stage = {}
        highest: float | None = None
        for stage, endpoints in self._stages:
            saturation = saturation_of(self._guard, endpoints)
            self.by_stage[stage] = saturation = 0.0 if saturation is None else saturation
            if highest is None or saturation > highest:
                highest = saturation
        return FULL if highest is None else highest


def _split(pool: Sequence[Endpoint]) -> Sequence[tuple[str, Sequence[Endpoint]]]:
    prefill: list[Endpoint] = []
    decode: list[Endpoint] = []
    for endpoint in pool:
        does_prefill, does_decode = _STAGES.get(endpoint.labels.get(_ROLE, ""), (False, True))
        if does_prefill:
            prefill.append(endpoint)
        if does_decode:
            decode.append(endpoint)
    # Tuples: they are kept, and a detector is given them again and again.
    return [
        (name, tuple(each)) for name, each in (("prefill", prefill), ("decode", decode)) if each
    ]


class SheddingAdmission:
    """Turns requests of negative priority away while the pool is full.

    A detector that fails says nothing about the pool, so everybody is admitted.

    Args:
        detector: Says how full the pool is.
        guards: Makes its guard.
    """

    def __init__(self, detector: SaturationDetector, guards: GuardRails) -> None:
        self._guard: Guard[SaturationDetector] = guards.guard("SaturationDetector", detector)

    @property
    def detector_name(self) -> str:
        """Name of the plugin that is asked."""
        return self._guard.plugin.name

    def excess(self, priority: int, endpoints: Sequence[Endpoint]) -> float | None:
        """Return the saturation that turns a request away; None if it is admitted.

        Args:
            priority: The request's; the detector is asked for sheddable ones only.
            endpoints: All of the pool.
        """
        if priority >= 0:
            return None
        saturation = saturation_of(self._guard, endpoints)
        return saturation if saturation is not None and saturation >= FULL else None
