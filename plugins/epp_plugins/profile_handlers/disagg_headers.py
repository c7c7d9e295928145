"""``disagg-headers-handler``: sends the chosen prefill and encode servers to the model server.

Deprecated: ``pd-profile-handler`` needs it, ``disagg-profile-handler`` sets the same headers
itself. It sets ``x-prefiller-host-port`` to the ``ip:port`` of the best endpoint of the profile
``prefillProfile``, and ``x-encoder-hosts-ports`` to the comma-separated list of those of all
endpoints of ``encodeProfile``. If a profile has chosen no endpoint, a client's header of that name
is removed. The older name of this type is ``prefill-header-handler``.

Example::

    plugins:
      - type: disagg-headers-handler
        parameters: {prefillProfile: prefill, encodeProfile: encode}
"""

from typing import ClassVar

import msgspec

from epp.request_control.plugins import PreRequest
from epp.scheduling import CycleState, LLMRequest, SchedulingResult
from epp_plugins.profile_handlers.stages import set_stage_headers
from epp_plugins.state_keys import DEFAULT_PREFILL_PROFILE


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``disagg-headers-handler``."""

    prefill_profile: str = DEFAULT_PREFILL_PROFILE
    """Profile of the endpoint that computes the prompt."""
    encode_profile: str = "encode"
    """Profile of the endpoints that encode media."""


class DisaggHeadersHandler(PreRequest):
    """Sets the headers for the prefill and encode stages."""

    type: ClassVar[str] = "disagg-headers-handler"
    keeps_result: ClassVar[bool] = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._prefill = params.prefill_profile
        self._encode = params.encode_profile

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        set_stage_headers(request, result, state, prefill=self._prefill, encode=self._encode)
