"""``disaggregatedset-rollout-screener``: keeps each request within one revision of a rollout.

While a ``DisaggregatedSet`` is rolled out, its prefill and decode servers exist in two revisions,
whose KV caches may not fit together. The screener runs once per request, before all profiles, so
prefill and decode are chosen among servers of the same revision. It is not listed in a profile.

A pod counts if ``scope.labelSelector`` selects it, it is ready, and it has the labels
``revisionGating.revisionLabelKey`` and ``roleLabelKey``. A revision is complete if each role of
``requireRoles.values`` has such a pod. For each request:

1. Endpoints of incomplete revisions, and those without a revision, are removed.
2. Unless the request has the header of a ``strict`` selector, one of the revisions left is drawn,
   with a probability proportional to its weight, and the endpoints of the others are removed. With
   ``mode: sum`` the weight is the number of its pods with a required role. With ``max-role`` it is
   the number of its pods with the role that has the most pods in all complete revisions (of several
   such roles, the first in the list). A request that waits in a queue keeps its revision as long as
   that is complete.
3. Each ``strict`` selector whose header the request has keeps the endpoints whose label equals it.

If no endpoint is left, the request ends with 503; so do all requests as long as no pod is known,
and always if the endpoints do not come from the Kubernetes API. ``mode: disabled`` leaves out 1
and 2 and reads no pods.

For all selectors, ``strict`` and ``prefer``, the response gets the header with the label of the
endpoint that served. ``prefer`` does nothing else; ``header-label-affinity-scorer`` with the same
header and label prefers matching endpoints.

Example: revision A has 2 prefill and 9 decode pods, B has 1 and 1. ``sum`` sends 11/13 of the
requests to A, ``max-role`` 9/10, because decode has the most pods.

Metrics: ``disaggregatedset_revision_gating_share`` by mode and revision, 0 for an incomplete one;
``disaggregatedset_strict_header_no_match_total`` by selector. Same behaviour as llm-d-router
``disaggregatedset-rollout-screener``, except that a revision is drawn again if it becomes
incomplete while the request waits.

Reads:  request headers, ``endpoint.labels``; pods of the pool's namespace.
Writes: response headers.
Example::

    plugins:
      - type: disaggregatedset-rollout-screener
        parameters:
          scope: {labelSelector: disaggregatedset.x-k8s.io/name=my-set}
          headerSelectors:
            - name: revision
              headerName: x-disagg-revision
              labelKey: disaggregatedset.x-k8s.io/revision
              mode: strict
          revisionGating:
            mode: max-role
            requireRoles: {values: [prefill, decode]}
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

from epp.data_layer.plugins import ObjectChange, ObjectEvent, ObjectListener
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control.plugins import ResponseHead, ResponseHeader, Screener
from epp.scheduling import CycleState, Endpoint, LLMRequest, StateKey
from epp_plugins.label_selectors import matcher_of_text
from epp_plugins.pods import POD, READINESS_FIELDS, is_ready, labels_of
from epp_plugins.screeners.rollout_params import Params

_DUMPED_REVISIONS: Final = 50


class DisaggregatedSetRolloutScreener(Screener, ResponseHeader, ObjectListener):
    """Restricts each request to the endpoints of one complete revision.

    Args:
        name: The plugin's name.
        params: Its parameters.
        rng: Draws revisions.
        metrics: Registers its metrics.
    """

    type: ClassVar[str] = "disaggregatedset-rollout-screener"

    def __init__(
        self,
        name: str,
        params: Params,
        *,
        rng: random.Random,
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
    ) -> None:
        self.name = name
        gating = params.revision_gating
        self._selects = matcher_of_text(params.scope.label_selector)
        self._roles = gating.roles
        self._mode = gating.mode
        self._revision_label = gating.revision_label
        self._role_label = gating.role_label
        self._headers = [(each.header_name.lower(), each) for each in params.header_selectors]
        self._strict = [(header, each) for header, each in self._headers if each.mode == "strict"]
        self._rng = rng
        self._drawn = StateKey[str](f"rollout-revision/{name}", kind=str)
        self._pods: dict[tuple[str, str], tuple[str, str]] = {}
        """Revision and role of each pod that counts, by namespace and name."""
        self._counts: Counter[tuple[str, str]] = Counter()
        """Number of these pods by revision and role."""
        self._weights: Mapping[str, int] = {}
        """Weights of the complete revisions; replaced, never changed in place."""
        self._shares: Mapping[tuple[str, ...], float] = {}
        """Share of each revision, complete or not, by mode and revision; replaced as well."""
        self.object_kind = POD if self._roles else None
        self.object_fields = ("metadata.labels", *READINESS_FIELDS)
        self._misses = metrics.counter(
            self,
            "disaggregatedset_strict_header_no_match_total",
            "Requests whose header of a strict selector matched no endpoint.",
            ("selector",),
        )
        if self._roles:
            metrics.gauge(
                self,
                "disaggregatedset_revision_gating_share",
                "Share of the requests that a revision gets, 0 to 1; 0 if it is incomplete.",
                self._read_shares,
                ("mode", "revision"),
            )

    def object_changed(self, event: ObjectEvent) -> None:
        key = event.namespace, event.name
        before = self._pods.pop(key, None)
        counted = self._counted(event.object) if event.change is ObjectChange.UPDATED else None
        if counted is not None:
            self._pods[key] = counted
        if counted == before:
            return
        if before is not None:
            self._counts[before] -= 1
        if counted is not None:
            self._counts[counted] += 1
        self._counts += Counter()  # removes entries that are 0
        self._weigh()

    def screen(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        wanted = [
            (text, selector)
            for header, selector in self._strict
            if (text := request.headers.get(header))
        ]
        kept: Sequence[Endpoint] = endpoints
        if self._roles:
            kept = self._of_complete_revisions(endpoints)
            if not wanted and kept:
                kept = self._of_one_revision(kept, state)
        for text, selector in wanted:
            if not kept:
                break
            label = selector.label_key
            kept = [endpoint for endpoint in kept if endpoint.labels.get(label) == text]
            if not kept:
                self._misses.inc(selector.name)
        return kept

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        for header, selector in self._headers:
            value = served_by.labels.get(selector.label_key)
            if value:
                response.set_headers[header] = value

    def dump_state(self) -> Mapping[str, object]:
        shares = {revision: share for (_, revision), share in self._shares.items()}
        shown = list(shares)[:_DUMPED_REVISIONS]
        return {
            "pods": len(self._pods),
            "revisions": len(shares),
            "share_by_revision": {each: round(shares[each], 6) for each in shown},
            "pods_by_revision": {
                each: {role: self._counts[each, role] for role in self._roles} for each in shown
            },
        }

    def _counted(self, pod: Mapping[str, object]) -> tuple[str, str] | None:
        """Return the revision and the role of a pod; None if the pod does not count."""
        labels = labels_of(pod)
        revision = labels.get(self._revision_label)
        role = labels.get(self._role_label)
        if not (revision and role and self._selects(labels) and is_ready(pod)):
            return None
        return revision, role

    def _weigh(self) -> None:
        counts, roles = self._counts, self._roles
        revisions = sorted({revision for revision, _ in counts})
        complete = [each for each in revisions if all(counts[each, role] for role in roles)]
        if self._mode == "max-role":
            # max() returns the first of equals, in the order of requireRoles.
            roles = (max(roles, key=lambda role: sum(counts[each, role] for each in complete)),)
        weights = {each: sum(counts[each, role] for role in roles) for each in complete}
        total = sum(weights.values())
        self._weights = weights
        self._shares = {
            (self._mode, each): weights[each] / total if each in weights else 0.0
            for each in revisions
        }

    def _read_shares(self) -> Mapping[tuple[str, ...], float]:
        return self._shares

    def _of_complete_revisions(self, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
        label, weights = self._revision_label, self._weights
        return [endpoint for endpoint in endpoints if endpoint.labels.get(label) in weights]

    def _of_one_revision(
        self, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        label = self._revision_label
        revisions = sorted({endpoint.labels[label] for endpoint in endpoints})
        drawn = state.read(self._drawn)
        if drawn not in revisions:
            (drawn,) = self._rng.choices(revisions, [self._weights[each] for each in revisions])
            state.write(self._drawn, drawn)
        return [endpoint for endpoint in endpoints if endpoint.labels[label] == drawn]
