"""Finds an endpoint by the name or address that an operator gives."""

from collections.abc import Sequence
from typing import Final

from epp.scheduling import Endpoint

_LISTED: Final = 10


class NoSuchEndpointError(Exception):
    """No endpoint has the name or address; the text lists those of the pool."""


class AmbiguousNameError(Exception):
    """Several endpoints have the name or address; the text lists them."""


def endpoint_named(wanted: str, pool: Sequence[Endpoint]) -> Endpoint:
    """Return the endpoint with that name, with or without its namespace, or that ``ip:port``.

    Raises:
        NoSuchEndpointError: There is none.
        AmbiguousNameError: There are several.
    """
    found = [each for each in pool if each.name == wanted] or [
        each for each in pool if wanted in {each.address, each.name.rpartition("/")[2]}
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise AmbiguousNameError(f"{wanted!r} is more than one endpoint: {_listed(found)}")
    names = _listed(pool) or "none"
    raise NoSuchEndpointError(f"there is no endpoint {wanted!r}; the pool has {names}")


def _listed(endpoints: Sequence[Endpoint]) -> str:
    names = ", ".join(each.name for each in endpoints[:_LISTED])
    more = len(endpoints) - _LISTED
    return f"{names} and {more} more" if more > 0 else names
