"""``disagg-profile-handler``: chooses separate servers for encode, prefill and decode.

Each stage is a profile that picks an endpoint. Decode always runs, and its endpoint is the
destination; headers tell its model server the endpoints of the other stages. ``stageOrder`` is the
order in which stages run::

    decode-first    decode, encode if its decider chooses it, prefill if its decider chooses it
    prefill-first   prefill if it has a profile, encode if its decider chooses it, decode

With ``decode-first`` a stage without a decider is off, and deciders get the decode endpoint. With
``prefill-first`` a prefill decider is an error; encode without a decider is off, and its decider
gets no endpoint, because none has been chosen yet. The endpoint of decode is published before
prefill runs (or that of prefill before decode runs) for plugins such as
``topology-affinity-filter``.

If decode fails, the request fails with decode's error. If another stage fails, the request
continues without it. ``disagg_degraded_total`` counts these requests by stage (``prefill``,
``encode``) and reason: the stage's filters left no endpoint (``no-endpoints``) or dropped the
request (``dropped``), the stage failed otherwise (``error``), its decider raised an exception
(``decider-error``), or its decider chose it although its profile is not configured
(``no-profile``). ``disagg_decision_total`` counts requests by the stages that they go through, as
``decision_type``.

Headers to the model server::

    x-prefiller-host-port   ip:port of the best prefill endpoint
    x-encoder-hosts-ports   ip:port of all encode endpoints, comma-separated, best first
                            (as many as the encode profile's picker picks)

If there is no value, a client's header of that name is removed.

``joint: topology`` (not in llm-d-router) chooses prefill and decode as a pair after both profiles
have run. Of all endpoints with at least 0.9 of their profile's best total (at most 64 for decode),
it chooses the pair with the greatest value of::

    decode / best decode + prefill / best prefill + closeness

Closeness is 1 for the same host, 0.2 for the same rack, 0.05 for the same zone, 0.02 for the same
region, else 0. If values are equal, the pickers' choice is kept. Deciders run before that, with the
decode endpoint that was picked independently. ``topology-extractor`` must be configured. The
calculation takes about 1.3 us per candidate endpoint.

The flat parameters (``decodeProfile`` and so on) are deprecated names of the nested ones; a
configuration must not mix both kinds.

Reads:  the ``Topology`` of endpoints, with ``joint`` only; what the deciders read.
Writes: ``PREFILL_PROFILE`` and ``PEER_ENDPOINT`` to the cycle state.
Example::

    plugins:
      - type: prefix-based-pd-decider
        parameters: {nonCachedTokens: 512}
      - type: disagg-profile-handler
        parameters:
          deciders: {prefill: prefix-based-pd-decider}
      - type: prefill-filter
      - type: decode-filter
    schedulingProfiles:
      - {name: prefill, plugins: [{pluginRef: prefill-filter}]}
      - {name: decode, plugins: [{pluginRef: decode-filter}]}
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Final

from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control.plugins import PreRequest
from epp.scheduling import (
    AttributeKey,
    CycleState,
    LLMRequest,
    ProfileHandler,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
    StageDecider,
)
from epp_plugins.profile_handlers.disagg_params import Params
from epp_plugins.profile_handlers.joint import with_best_pair
from epp_plugins.profile_handlers.stages import (
    OptionalStages,
    Refer,
    Stage,
    check_profile,
    missing_profile,
    set_stage_headers,
    unused_profiles,
)
from epp_plugins.state_keys import PEER_ENDPOINT, PREFILL_PROFILE, topology_of

_NO_MORE: Mapping[str, SchedulerProfile] = {}
_DECISIONS: Final = {
    (False, False): "decode-only",
    (False, True): "prefill-decode",
    (True, False): "encode-decode",
    (True, True): "encode-prefill-decode",
}
"""Names of decisions by whether they have an encode and a prefill."""


class DisaggProfileHandler(ProfileHandler, PreRequest):
    """Runs decode, and prefill and encode if their deciders choose them."""

    type: ClassVar[str] = "disagg-profile-handler"
    keeps_result: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        params: Params,
        refer: Refer,
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
    ) -> None:
        self.name = name
        profiles, deciders = params.stage_profiles(), params.stage_deciders()
        self._is_prefill_first = params.order == "prefill-first"
        self._decode = profiles.decode
        self._prefill = Stage("prefill", profiles.prefill, _decider(deciders.prefill, refer))
        self._encode = Stage("encode", profiles.encode, _decider(deciders.encode, refer))
        self._topology = topology_of(params.topology_producer_name) if params.joint else None
        self.reads: tuple[AttributeKey[Any], ...] = (self._topology,) if self._topology else ()
        self._stages = OptionalStages(self, metrics)
        self._decisions = metrics.counter(
            self,
            "disagg_decision_total",
            "Requests by the stages that they go through.",
            ("decision_type", "model_name"),
        )

    def profile_faults(self, profiles: Collection[str]) -> Iterable[str]:
        return missing_profile("profiles.decode", self._decode, profiles)

    def profile_warnings(self, profiles: Collection[str]) -> Iterable[str]:
        stages = (self._prefill, self._encode)
        warnings = unused_profiles(profiles, [self._decode, *(stage.profile for stage in stages)])
        for stage in stages:
            has_profile = stage.profile in profiles
            always_runs = self._is_prefill_first and stage is self._prefill
            if stage.decider is not None and not has_profile:
                warnings.append(f"no profile is named {stage.profile!r}: {stage.name} is off")
            elif stage.decider is None and has_profile and not always_runs:
                warnings.append(f"{stage.name} is off, as there is no deciders.{stage.name}")
        return warnings

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        if not results:
            check_profile(self, "profiles.decode", self._decode, profiles)
            state.write(PREFILL_PROFILE, self._prefill.profile)
            state.forget(PEER_ENDPOINT)  # of an earlier attempt of this request
        following = self._prefill_first if self._is_prefill_first else self._decode_first
        name = following(request, profiles, results, state)
        return {name: profiles[name]} if name else _NO_MORE

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        decode = results[self._decode]
        if decode.error is not None:
            raise decode.error
        prefill = self._stages.outcome(self._prefill, results)
        encode = self._stages.outcome(self._encode, results)
        decision = _DECISIONS[bool(encode), bool(prefill)]
        self._decisions.inc(decision, request.target_model or "unknown")
        if prefill and self._topology is not None:
            name = self._prefill.profile
            decode, paired = with_best_pair(decode, prefill[name], self._topology)
            prefill = {name: paired}
        return SchedulingResult({self._decode: decode, **prefill, **encode}, self._decode)

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        set_stage_headers(
            request, result, state, prefill=self._prefill.profile, encode=self._encode.profile
        )

    def _decode_first(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> str:
        """Return the profile to run next; "" for none.

        Encode runs before prefill, so the results show which deciders have been called.
        """
        decode = results.get(self._decode)
        if decode is None:
            return self._decode
        if not decode.endpoints or self._prefill.profile in results:
            return ""
        endpoint = decode.endpoints[0].endpoint
        if self._encode.profile not in results and self._stages.wants(
            self._encode, request, endpoint, profiles, state
        ):
            return self._encode.profile
        if self._stages.wants(self._prefill, request, endpoint, profiles, state):
            state.write(PEER_ENDPOINT, endpoint)
            return self._prefill.profile
        return ""

    def _prefill_first(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> str:
        """Return the profile to run next; "" for none."""
        if self._decode in results:
            return ""
        if self._prefill.profile in profiles and self._prefill.profile not in results:
            return self._prefill.profile
        if self._encode.profile not in results and self._stages.wants(
            self._encode, request, None, profiles, state
        ):
            return self._encode.profile
        prefill = results.get(self._prefill.profile)
        if prefill is not None and prefill.endpoints:
            state.write(PEER_ENDPOINT, prefill.endpoints[0].endpoint)
        return self._decode


def _decider(name: str, refer: Refer) -> StageDecider | None:
    return refer(name, StageDecider) if name else None
