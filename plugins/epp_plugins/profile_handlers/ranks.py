"""Data-parallel ranks behind one port: the gateway gets the port, and the server gets the rank."""

from epp.scheduling import CycleState, LLMRequest, SchedulingResult
from epp_plugins.profile_handlers.stages import RANK_HEADER
from epp_plugins.request_headers import set_header


def send_to_primary_port(result: SchedulingResult, port: int) -> SchedulingResult:
    """Return ``result`` with the best endpoint's host and ``port`` as its destination."""
    host, _, _ = result.endpoints[0].endpoint.address.rpartition(":")
    result.destination = f"{host}:{port}"
    return result


def set_rank_header(request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
    """Set the header that names the chosen rank to the server at the primary port."""
    set_header(request, state, RANK_HEADER, result.endpoints[0].endpoint.address)
