"""``agent-identity``: tells the sessions of coding agents apart by the headers they send.

The first of these request headers with an id in it is the identity: those of
``additionalSessionHeaders``, in their order, then ``x-claude-code-session-id`` (Claude Code),
``x-session-affinity`` (OpenCode), ``session-id`` and ``session_id`` (Codex). Blanks around the id
are no part of it; what is longer than 256 characters or has control characters in it is none.

If the request says in no header to which flow it belongs (``x-llm-d-inference-fairness-id``), its
fairness id becomes the identity, in metrics and for flow control, where all turns of an agent wait
in one queue and agents take turns. Clients choose these ids themselves. Where they are not to be
trusted with that, let the gateway set the fairness id.

Writes: ``AGENT_IDENTITY`` (``agent-identity/``) and ``request.fairness_id``; neither for a request
        without an identity. ``session-affinity-filter`` and ``-scorer`` take it as a source.
Example::

    plugins:
      - type: agent-identity
        parameters: {additionalSessionHeaders: [x-session-id]}
"""

from typing import Any, ClassVar, Final

import msgspec

from epp.request_control.plugins import RequestHeaderProcessor
from epp.scheduling import CycleState, LLMRequest, StateKey
from epp_plugins.session_ids import usable_id
from epp_plugins.state_keys import AGENT_IDENTITY

_KNOWN: Final = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``agent-identity``."""

    additional_session_headers: tuple[str, ...] = ()
    """Further headers with an id, asked before the known ones; upper and lower case of their names
    are the same."""


class AgentIdentity(RequestHeaderProcessor):
    """Finds out which agent session a request belongs to, for fairness and affinity."""

    type: ClassVar[str] = "agent-identity"
    writes: ClassVar[tuple[StateKey[Any], ...]] = (AGENT_IDENTITY,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        additional = (header.strip().lower() for header in params.additional_session_headers)
        self._headers = tuple(dict.fromkeys((*additional, *_KNOWN)))

    def process_request_headers(self, request: LLMRequest, state: CycleState) -> None:
        headers = request.headers
        for header in self._headers:
            if identity := usable_id(headers.get(header)):
                state.write(AGENT_IDENTITY, identity)
                if not request.fairness_id:
                    request.fairness_id = identity
                return
