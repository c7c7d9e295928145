"""``data-parallel-profile-handler``: chooses among ranks that are reached through one port.

Takes exactly one profile, in which each rank is an endpoint with a port of its own. The gateway is
told the host of the rank chosen, with ``primaryPort``; what listens there (a sidecar) is told the
rank's own ``ip:port`` in the header ``x-data-parallel-host-port``, and one that a client sent is
replaced. To all plugins the endpoint is the rank itself, with its metrics and attributes. Further
endpoints that the picker names as fallbacks are not told to the gateway: the header belongs to one.

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
    """Runs the one profile there is, and sends to the primary port of the host it chose."""

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
