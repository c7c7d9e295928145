"""``disagg-headers-handler``: tells the model server which prefill and encode were chosen.

Deprecated; ``pd-profile-handler`` needs it, ``disagg-profile-handler`` does the same by itself.
Sets ``x-prefiller-host-port`` to the ``ip:port`` of the best endpoint of profile
``prefillProfile``, and ``x-encoder-hosts-ports`` to those of all endpoints of ``encodeProfile``, by
commas. If a profile has chosen nothing, what a client sent under that name is removed. Its older
name is ``prefill-header-handler``.

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
    """Sets the headers of the stages before decode."""

    type: ClassVar[str] = "disagg-headers-handler"
    keeps_result: ClassVar[bool] = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._prefill = params.prefill_profile
        self._encode = params.encode_profile

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        set_stage_headers(request, result, state, prefill=self._prefill, encode=self._encode)
