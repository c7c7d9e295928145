"""``agent-identity``: identifies the sessions of coding agents by their request headers.

The identity is the first valid id in these request headers: those of ``additionalSessionHeaders``,
in their order, then ``x-claude-code-session-id`` (Claude Code), ``x-session-affinity`` (OpenCode),
``session-id`` and ``session_id`` (Codex). Spaces around the id are removed. An id of more than 256
characters or with control characters is ignored.

If the request has no ``x-llm-d-inference-fairness-id`` header, the identity becomes its fairness
id, in metrics and for flow control: all requests of an agent session are one flow, and fairness
policies share capacity between sessions. Clients choose these ids. If you do not trust them, have
the gateway set the fairness id.

Writes: ``AGENT_IDENTITY`` (``agent-identity/``) and ``request.fairness_id``; neither for a request
        without an identity. ``session-affinity-filter`` and ``-scorer`` can use it as a source.
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
    """Further headers with an id, read before the built-in ones; names are case-insensitive."""


class AgentIdentity(RequestHeaderProcessor):
    """Finds the agent session of a request, for fairness and affinity."""

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
