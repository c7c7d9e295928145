"""``pd-profile-handler``: chooses separate servers for prefill and decode. Deprecated.

Use ``disagg-profile-handler`` instead. Decode runs first, and its endpoint is the destination. Then
prefill runs if the decider, which gets the decode endpoint, chooses it. If decode fails, the
request fails; if prefill fails, the request continues without it (``disagg_degraded_total`` counts
this by reason). ``pd_decision_total`` counts the results of the decider.

The prefill endpoint is sent to the model server only if ``disagg-headers-handler`` is configured,
too. A client's headers ``x-prefiller-host-port`` and ``x-encoder-hosts-ports`` are removed.

With ``primaryPort`` the gateway gets the decode endpoint's host with that port, and the header
``x-data-parallel-host-port`` has its own ``ip:port``, as with ``data-parallel-profile-handler``.

Writes: ``PREFILL_PROFILE`` to the cycle state.
Example::

    plugins:
      - type: prefix-based-pd-decider
        parameters: {nonCachedTokens: 512}
      - type: pd-profile-handler
      - type: disagg-headers-handler
      - type: prefill-filter
      - type: decode-filter
    schedulingProfiles:
      - {name: prefill, plugins: [{pluginRef: prefill-filter}]}
      - {name: decode, plugins: [{pluginRef: decode-filter}]}
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, ClassVar

import msgspec

from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control.plugins import PreRequest
from epp.scheduling import (
    CycleState,
    LLMRequest,
    ProfileHandler,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
    StageDecider,
)
from epp_plugins.profile_handlers.disagg_params import PluginName
from epp_plugins.profile_handlers.ranks import send_to_primary_port, set_rank_header
from epp_plugins.profile_handlers.stages import (
    ENCODERS_HEADER,
    PREFILL_HEADER,
    OptionalStages,
    Refer,
    Stage,
    check_profile,
    missing_profile,
    unused_profiles,
)
from epp_plugins.request_headers import set_header
from epp_plugins.state_keys import PREFILL_PROFILE

_NO_MORE: Mapping[str, SchedulerProfile] = {}


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``pd-profile-handler``."""

    decode_profile: str = "decode"
    """Profile of the destination."""
    prefill_profile: str = "prefill"
    """Profile of the endpoint that computes the prompt."""
    decider_plugin_name: PluginName = "prefix-based-pd-decider"
    """Stage decider of prefill; it must be configured."""
    primary_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Port that is sent to the gateway; 0 for the endpoint's own."""
    prefix_plugin_type: str = ""
    """Not used."""
    prefix_plugin_name: str = ""
    """Not used."""
    prefix_match_info_producer_name: str = ""
    """Not used: the decider has a parameter of this name."""

    def __post_init__(self) -> None:
        if not self.decider_plugin_name:
            raise ValueError("deciderPluginName is empty; leave it out for prefix-based-pd-decider")
        if self.decode_profile == self.prefill_profile:
            raise ValueError(
                f"decodeProfile and prefillProfile are both {self.decode_profile!r}: give each a"
                " profile of its own"
            )


class PdProfileHandler(ProfileHandler, PreRequest):
    """Runs decode, then prefill if its decider chooses it; sets no prefill header."""

    type: ClassVar[str] = "pd-profile-handler"
    keeps_result: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        params: Params,
        refer: Refer,
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
    ) -> None:
        self.name = name
        self._decode = params.decode_profile
        decider = refer(params.decider_plugin_name, StageDecider)
        self._prefill = Stage("prefill", params.prefill_profile, decider)
        self._primary_port = params.primary_port
        self._stages = OptionalStages(self, metrics)
        self._decisions = metrics.counter(
            self,
            "pd_decision_total",
            "Requests by whether the decider of pd-profile-handler wants a prefill.",
            ("decision_type", "model_name"),
        )

    def profile_faults(self, profiles: Collection[str]) -> Iterable[str]:
        return missing_profile("decodeProfile", self._decode, profiles)

    def profile_warnings(self, profiles: Collection[str]) -> Iterable[str]:
        warnings = unused_profiles(profiles, [self._decode, self._prefill.profile])
        if self._prefill.profile not in profiles:
            warnings.append(f"no profile is named {self._prefill.profile!r}: prefill is off")
        return warnings

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        if not results:
            check_profile(self, "decodeProfile", self._decode, profiles)
            state.write(PREFILL_PROFILE, self._prefill.profile)
            return {self._decode: profiles[self._decode]}
        decode = results[self._decode]
        if not decode.endpoints or self._prefill.profile in results or len(profiles) == 1:
            return _NO_MORE
        endpoint = decode.endpoints[0].endpoint
        is_wanted = self._stages.wants(self._prefill, request, endpoint, profiles, state)
        self._decisions.inc(
            "prefill-decode" if is_wanted else "decode-only", request.target_model or "unknown"
        )
        return {self._prefill.profile: profiles[self._prefill.profile]} if is_wanted else _NO_MORE

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        decode = results[self._decode]
        if decode.error is not None:
            raise decode.error
        prefill = self._stages.outcome(self._prefill, results)
        result = SchedulingResult({self._decode: decode, **prefill}, self._decode)
        return send_to_primary_port(result, self._primary_port) if self._primary_port else result

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        set_header(request, state, PREFILL_HEADER, "")
        set_header(request, state, ENCODERS_HEADER, "")
        if self._primary_port:
            set_rank_header(request, result, state)
