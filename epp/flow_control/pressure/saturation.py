"""The saturation of the pool: that of its fuller stage, prefill or decode.

Source: the Go EPP's flow control, which splits a pool by the label ``llm-d.ai/role``.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from time import perf_counter

from epp.flow_control.plugins import SaturationDetector
from epp.scheduling import PLUGIN_FAULTS, Endpoint, Guard, GuardRails, PluginContractError

FULL = 1.0
"""Saturation at which a pool is full."""

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
"""Whether a role serves prefill and decode; any other role, or none, serves decode."""


_UNKNOWN = (False, True)


def saturation_of(guard: Guard[SaturationDetector], endpoints: Sequence[Endpoint]) -> float | None:
    """Return the detector's value for ``endpoints``; None if it fails or is disabled."""
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


def serves_decode(endpoint: Endpoint) -> bool:
    """Return whether ``endpoint`` generates responses, by its role."""
    return _STAGES.get(endpoint.labels.get(_ROLE, ""), _UNKNOWN)[1]


class PoolSaturation:
    """The saturation of a pool that may have several stages; 0 if the detector fails."""

    def __init__(self, guard: Guard[SaturationDetector]) -> None:
        self._guard = guard
        self._pool: Sequence[Endpoint] | None = None
        self._stages: Sequence[tuple[str, Sequence[Endpoint]]] = ()
        self.by_stage: dict[str, float] = {}
        """The last values of ``prefill`` and ``decode``, for the stages that exist."""

    def measure(self, pool: Sequence[Endpoint]) -> float:
        """Return the saturation of ``pool``; 1.0 is full, as is a pool that serves no stage.

        Args:
            pool: A snapshot; it is split into stages once per object.
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
        does_prefill, does_decode = _STAGES.get(endpoint.labels.get(_ROLE, ""), _UNKNOWN)
        if does_prefill:
            prefill.append(endpoint)
        if does_decode:
            decode.append(endpoint)
    # Tuples, because they are passed to the detector at each measurement.
    return [
        (name, tuple(each)) for name, each in (("prefill", prefill), ("decode", decode)) if each
    ]


class SheddingAdmission:
    """Without flow control: refuses requests of negative priority while the pool is full.

    If the detector fails, all requests are admitted.

    Args:
        detector: Measures the saturation.
        guards: Guards the detector.
    """

    def __init__(self, detector: SaturationDetector, guards: GuardRails) -> None:
        self._guard: Guard[SaturationDetector] = guards.guard("SaturationDetector", detector)

    @property
    def detector_name(self) -> str:
        """Name of the detector plugin."""
        return self._guard.plugin.name

    def excess(self, priority: int, endpoints: Sequence[Endpoint]) -> float | None:
        """Return the saturation for which a request is refused; None if it is admitted.

        Args:
            priority: Priority of the request; if it is not negative, nothing is measured.
            endpoints: The whole pool.
        """
        if priority >= 0:
            return None
        saturation = saturation_of(self._guard, endpoints)
        return saturation if saturation is not None and saturation >= FULL else None
