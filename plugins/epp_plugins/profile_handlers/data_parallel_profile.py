"""``data-parallel-profile-handler``: chooses among data-parallel ranks behind one port.

It takes exactly one profile, in which each rank is an endpoint with its own port. The gateway gets
the host of the chosen rank with ``primaryPort``. The header ``x-data-parallel-host-port`` has the
rank's own ``ip:port`` for the sidecar that listens there; a client's header of this name is
replaced. For all plugins the endpoint is the rank itself, with its metrics and attributes. Fallback
endpoints of the picker are not sent to the gateway, because the header names only one rank.

Example::

    plugins:
      - type: data-parallel-profile-handler
        parameters: {primaryPort: 8000}
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from epp.request_control.plugins import PreRequest
from epp.scheduling import CycleState, LLMRequest, ProfileResult, SchedulingResult
from epp_plugins.profile_handlers.ranks import send_to_primary_port, set_rank_header
from epp_plugins.profile_handlers.single_profile import SingleProfileHandler


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``data-parallel-profile-handler``."""

    primary_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8000
    """Port through which all ranks of a host are reached."""


class DataParallelProfileHandler(SingleProfileHandler, PreRequest):
    """Runs the only profile, and sends the request to the primary port of the chosen host."""

    type: ClassVar[str] = "data-parallel-profile-handler"
    keeps_result: ClassVar[bool] = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._primary_port = params.primary_port

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        result = super().process_results(request, results, state)
        return send_to_primary_port(result, self._primary_port)

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        set_rank_header(request, result, state)
