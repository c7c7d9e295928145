"""``session-affinity-filter``: keeps the endpoint of the request's session, and no other.

Without a session, with one that is bound to nothing yet, or when its endpoint is not among the
candidates, all of them pass: the request is never refused for its session's sake. How the endpoint
of a session is known is the ``strategy``:

* ``encoded_endpoint_header``: every answer has the header ``x-session-token``, base64 of the
  ``namespace/name`` of the endpoint that served, and a client that sends it back comes back there.
  Nothing is kept here, so any replica understands it. A token that means nothing is none.
  A client can write such a token and so pick its server. With ``keyFile`` tokens are signed
  (HMAC-SHA256, 128 bits), and an unsigned, forged or expired one is ignored; with ``oldKeyFile``
  those of the previous key stay valid. Replicas share the key: `openssl rand -base64 32 > key`.
  Ignored tokens are counted by reason in ``session_tokens_ignored_total``.
* ``session_id``: the client sends an id, and this instance keeps where the session runs: where its
  first request was sent. It is bound anew only when its endpoint is no candidate any more, or after
  ``evictionTtlSeconds`` without a request that went there. At most 65536 sessions are kept; the one
  unused for longest makes room. Ids are stripped of blanks; one that is longer than 256 characters
  or has control characters in it is none, and the next source is asked.

With several profiles ``profileName`` names the one whose endpoint is meant; use one instance for
each, with headers of their own for tokens. A profile that did not run leaves everything as it was.
Only the configuration of the chosen strategy is looked at: ``sessionIdConfig`` does nothing without
``strategy: session_id``. A reload that changes any of the parameters forgets all bindings.

A session is never moved for load's sake: a busy one stays on its endpoint. Put a
``utilization-filter`` with ``fallbackOnEmpty: true`` **before** this one to move it: an endpoint
that is too busy is then no candidate, the request goes elsewhere, and its session with it. Behind
this one it would leave nothing of a busy session's only endpoint.

Do not use it together with ``session-affinity-scorer``: each keeps bindings of its own.

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
