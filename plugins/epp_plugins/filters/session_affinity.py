"""``session-affinity-filter``: keeps the endpoint of the request's session, and no other.

All candidates pass if the request has no session, if the session is not bound to an endpoint yet,
or if its endpoint is not a candidate: a session never causes a refusal. ``strategy`` decides how
the endpoint of a session is found:

* ``encoded_endpoint_header``: every response has the header ``x-session-token``, base64 of the
  ``namespace/name`` of the endpoint that served it. A request with that token is sent to the same
  endpoint. No state is kept, so every replica can read the token. An invalid token is ignored.
  A client can write such a token itself and so choose its server. With ``keyFile`` tokens are
  signed (HMAC-SHA256, 128 bits), and unsigned, forged or expired tokens are ignored; with
  ``oldKeyFile`` tokens of the previous key stay valid. All replicas need the same key
  (`openssl rand -base64 32 > key`). ``session_tokens_ignored_total`` counts ignored tokens by
  reason.
* ``session_id``: the client sends an id, and this instance records the endpoint of the session's
  first request. The session is bound to another endpoint only if its endpoint is no longer a
  candidate, or after ``evictionTtlSeconds`` without a request to it. At most 65536 sessions are
  kept; beyond that the least recently used one is removed. Spaces around an id are removed. An id
  of more than 256 characters or with control characters is ignored, and the next source is used.

With several profiles, ``profileName`` is the profile whose endpoint is bound. Use one instance per
profile, with different token headers. If the profile does not run, the binding is unchanged. Only
the configuration of the chosen strategy has an effect: ``sessionIdConfig`` needs
``strategy: session_id``. A reload that changes any of the parameters removes all bindings.

Load does not move a session: it stays on a busy endpoint. To move busy sessions, put a
``utilization-filter`` with ``fallbackOnEmpty: true`` before this filter: an overloaded endpoint
is then not a candidate, and the session moves with the request. After this filter it would have no
effect, because the session's endpoint is the only one left.

Do not combine this plugin with ``session-affinity-scorer``: each keeps its own bindings.

Reads:  ``Name/producer`` of each source that is an attribute, from the cycle state; a plugin must
        write it. ``agent-identity/`` is written by ``agent-identity``,
        ``SessionIDDataKey/session-id-producer`` by ``session-id-producer``.
Example::

    plugins:
      - type: agent-identity
      - type: utilization-filter
        parameters:
          conditions: [{metric: waiting-queue, maxValue: 20}]
          fallbackOnEmpty: true
      - type: session-affinity-filter
        parameters:
          strategy: session_id
          sessionIdConfig:
            sources: [{header: x-session-id}, {attribute: agent-identity}]
            evictionTtlSeconds: 600
    schedulingProfiles:
      - name: default
        plugins:
          - pluginRef: utilization-filter
          - pluginRef: session-affinity-filter
"""

from collections.abc import Sequence
from typing import ClassVar

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest
from epp_plugins.session_affinity import SessionAffinity


class SessionAffinityFilter(SessionAffinity, Filter):
    """Keeps the endpoint that the request's session is bound to, if it is a candidate."""

    type: ClassVar[str] = "session-affinity-filter"

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        position = self.position_of_bound(request, endpoints, state)
        return list(endpoints) if position is None else [endpoints[position]]
