"""Request headers that plugins set for the model server."""

from epp.request_control.plugins import REQUEST_HEADERS_TO_SET
from epp.scheduling import CycleState, LLMRequest


def set_header(request: LLMRequest, state: CycleState, name: str, value: str) -> None:
    """Set a request header; if ``value`` is empty, remove the client's header.

    If one plugin sets a header and another removes it, it is set, in either order of the calls.
    """
    if not value and name not in request.headers:
        return
    headers = state.read(REQUEST_HEADERS_TO_SET)
    if headers is None:
        headers = {}
        state.write(REQUEST_HEADERS_TO_SET, headers)
    if value:
        headers[name] = value
    else:
        headers.setdefault(name, None)
