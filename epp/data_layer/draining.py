"""The changing call behind ``epp drain``."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from epp.data_layer.store import EndpointStore
from epp.observability import AdminError

PATH: Final = "endpoints/drain"
"""Path of the call below ``/debug/``, with the parameters ``endpoint`` and ``undo``."""

_NAMES: Final = 10
"""How many endpoints an error names."""


def drain(store: EndpointStore, given: Mapping[str, str]) -> Mapping[str, object]:
    """Drain the endpoint of that name or ``ip:port``, or undo that.

    Raises:
        AdminError: There is no such endpoint, or a parameter is invalid.
    """
    wanted, undo = given.get("endpoint", ""), given.get("undo", "false")
    if undo not in {"true", "false"}:
        raise AdminError(HTTPStatus.BAD_REQUEST, f"undo is {undo!r}, not true or false")
    for endpoint in store.snapshot:
        if wanted in {endpoint.name, endpoint.name.rpartition("/")[2], endpoint.address}:
            store.drain(endpoint, undo=undo == "true")
            return {
                "name": endpoint.name,
                "is_draining": endpoint.is_draining,
                "in_flight": endpoint.load.in_flight,
                "serving": len(store.serving),
            }
    names = [endpoint.name for endpoint in store.snapshot]
    some = ", ".join(names[:_NAMES]) or "none"
    more = ", …" if len(names) > _NAMES else ""
    text = f"there is no endpoint {wanted!r}; the pool has {some}{more}"
    raise AdminError(HTTPStatus.NOT_FOUND, text)
