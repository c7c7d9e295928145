"""Errors of the API client as a relay passes them on to other processes.

Each process gets an error of the same class, and reports and handles it as if it had made the call
itself.
"""

from typing import Literal

import msgspec

from epp.kubernetes.api.errors import (
    ApiError,
    ConnectionFailedError,
    KubernetesApiError,
    UnreachableError,
)
from epp.kubernetes.api.resource import ApiCall


class _RelayedError(msgspec.Struct, omit_defaults=True):
    kind: Literal["refused", "unreachable", "failed"]
    message: str
    status: int = 0
    reason: str = ""
    verb: str = ""


def written(error: KubernetesApiError) -> bytes:
    """Return an error as the body of a response."""
    if isinstance(error, ApiError):
        made = _RelayedError("refused", error.message, error.status, error.reason, error.verb)
    elif isinstance(error, UnreachableError):
        made = _RelayedError("unreachable", str(error))
    else:
        made = _RelayedError("failed", str(error))
    return msgspec.json.encode(made)


def restored(body: bytes, call: ApiCall) -> KubernetesApiError:
    """Return the error with which a relay has answered a call.

    Args:
        body: Body of the response.
        call: The call to the relay. The relay's own call may have had another verb.
    """
    error: KubernetesApiError
    try:
        found = msgspec.json.decode(body, type=_RelayedError)
    except msgspec.DecodeError as why:
        error = ConnectionFailedError(f"unexpected response of the relay to {call.path}: {why}")
    else:
        if found.kind == "refused":
            made = ApiCall(verb=found.verb, resource=call.resource, namespace=call.namespace)
            error = ApiError(found.status, found.reason, found.message, made)
        elif found.kind == "unreachable":
            error = UnreachableError(found.message)
        else:
            error = ConnectionFailedError(found.message)
    error.is_relayed = True
    return error
