"""``session-affinity-scorer``: prefers the endpoint of the request's session.

That endpoint scores 1, all others 0. All score 0 without a session, with one that is bound to
nothing yet, and when its endpoint is not among the candidates. How the endpoint of a session is
known is the ``strategy``:

* ``encoded_endpoint_header``: every answer has the header ``x-session-token``, base64 of the
  ``namespace/name`` of the endpoint that served, and a client that sends it back is drawn there.
  Nothing is kept here, so any replica understands it. A token that means nothing is none. Where
  other scorers have drawn a request elsewhere, the session goes on from there.
  A client can write such a token and so pick its server. With ``keyFile`` tokens are signed
  (HMAC-SHA256, 128 bits), and an unsigned, forged or expired one is ignored; with ``oldKeyFile``
  those of the previous key stay valid. Replicas share the key: `openssl rand -base64 32 > key`.
  Ignored tokens are counted by reason in ``session_tokens_ignored_total``.
* ``session_id``: the client sends an id, and this instance keeps where the session runs: where its
  first request was sent. It is bound anew only when its endpoint is no candidate any more, or after
  ``evictionTtlSeconds`` without a request that went there; a request that other scorers have drawn
  elsewhere leaves it as it is. At most 65536 sessions are kept; the one unused for longest makes
  room. Ids are stripped of blanks; one that is longer than 256 characters or has control characters
  in it is none, and the next source is asked.

With several profiles ``profileName`` names the one whose endpoint is meant; use one instance for
each, with headers of their own for tokens. A profile that did not run leaves everything as it was.
Only the configuration of the chosen strategy is looked at: ``sessionIdConfig`` does nothing without
``strategy: session_id``. A reload that changes any of the parameters forgets all bindings.

A bound session is never moved for load's sake. Other scorers can outweigh this one, request by
request; to move the session itself put a ``utilization-filter`` with ``fallbackOnEmpty: true`` into
the profile: an endpoint that is too busy is then no candidate.

Do not use it together with ``session-affinity-filter``, which has the same parameters: each keeps
bindings of its own.

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
