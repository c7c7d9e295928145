"""``session-affinity-scorer``: prefers the endpoint of the request's session.

The endpoint of the session scores 1, all others 0. All score 0 if the request has no session, if
the session is not bound to an endpoint yet, or if its endpoint is not a candidate. ``strategy``
decides how the endpoint of a session is found:

* ``encoded_endpoint_header``: every response has the header ``x-session-token``, base64 of the
  ``namespace/name`` of the endpoint that served it. A request with that token prefers the same
  endpoint. No state is kept, so every replica can read the token. An invalid token is ignored. If
  other scorers send a request elsewhere, the session continues there.
  A client can write such a token itself and so choose its server. With ``keyFile`` tokens are
  signed (HMAC-SHA256, 128 bits), and unsigned, forged or expired tokens are ignored; with
  ``oldKeyFile`` tokens of the previous key stay valid. All replicas need the same key
  (`openssl rand -base64 32 > key`). ``session_tokens_ignored_total`` counts ignored tokens by
  reason.
* ``session_id``: the client sends an id, and this instance records the endpoint of the session's
  first request. The session is bound to another endpoint only if its endpoint is no longer a
  candidate, or after ``evictionTtlSeconds`` without a request to it. A request that other scorers
  send elsewhere does not change the binding. At most 65536 sessions are kept; beyond that the least
  recently used one is removed. Spaces around an id are removed. An id of more than 256 characters
  or with control characters is ignored, and the next source is used.

With several profiles, ``profileName`` is the profile whose endpoint is bound. Use one instance per
profile, with different token headers. If the profile does not run, the binding is unchanged. Only
the configuration of the chosen strategy has an effect: ``sessionIdConfig`` needs
``strategy: session_id``. A reload that changes any of the parameters removes all bindings.

Load does not move a bound session. Other scorers can outweigh this one for single requests. To
move busy sessions, add a ``utilization-filter`` with ``fallbackOnEmpty: true`` to the profile: an
overloaded endpoint is then not a candidate.

Do not combine this plugin with ``session-affinity-filter``, which has the same parameters: each
keeps its own bindings.

Reads:  ``Name/producer`` of each source that is an attribute, from the cycle state; a plugin must
        write it. ``agent-identity/`` is written by ``agent-identity``,
        ``SessionIDDataKey/session-id-producer`` by ``session-id-producer``.
Example::

    plugins:
      - type: session-id-producer
        parameters: {cookieName: chat}
      - type: session-affinity-scorer
        parameters:
          strategy: session_id
          sessionIdConfig:
            sources: [{attribute: SessionIDDataKey, producer: session-id-producer}]
    schedulingProfiles:
      - name: default
        plugins:
          - {pluginRef: session-affinity-scorer, weight: 2}
"""

from collections.abc import Sequence
from typing import ClassVar

from epp.scheduling import CycleState, Endpoint, LLMRequest, Scorer
from epp_plugins.session_affinity import SessionAffinity


class SessionAffinityScorer(SessionAffinity, Scorer):
    """Scores the endpoint that the request's session is bound to 1, all others 0."""

    type: ClassVar[str] = "session-affinity-scorer"

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        scores = [0.0] * len(endpoints)
        position = self.position_of_bound(request, endpoints, state)
        if position is not None:
            scores[position] = 1.0
        return scores
