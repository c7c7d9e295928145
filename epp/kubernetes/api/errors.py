"""Errors of the Kubernetes API client; the root is :class:`KubernetesApiError`.

Each text says what failed, where, and, if an operator can fix it, how.
"""

import json
from collections.abc import Mapping
from typing import Final

import msgspec

from epp.kubernetes.api.resource import ApiCall

_MAX_FOREIGN_TEXT: Final = 200
"""Characters quoted from a response that is no ``Status``, such as a proxy's page."""

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_GONE: Final = 410
_GATEWAY_TIMEOUT: Final = 504


class KubernetesApiError(Exception):
    """Base of every error of this package."""

    is_relayed = False
    """Whether a relay has passed the error on (:mod:`.relayed_errors`), with no new call."""


class ConfigurationError(KubernetesApiError):
    """No usable configuration; the text lists the places searched and how to provide one."""


class ConnectionFailedError(KubernetesApiError):
    """A call got no complete, intelligible response; it may have been carried out."""


class UnreachableError(ConnectionFailedError):
    """No connection could be opened, so the call was not carried out."""


class Status(msgspec.Struct):
    """The object that the API server sends with an error."""

    code: int = 0
    reason: str = ""
    message: str = ""


class ApiError(KubernetesApiError):
    """The API server refused a call.

    Args:
        status: HTTP status, or the code of an ERROR event.
        reason: A word such as ``Forbidden``; empty if the response has none.
        message: The server's explanation.
        call: The refused call.
        retry_after_seconds: How long the server wants the client to wait.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        call: ApiCall,
        *,
        retry_after_seconds: float | None = None,
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.verb = call.verb
        self.resource = call.resource
        self.namespace = call.namespace
        self.retry_after_seconds = retry_after_seconds
        super().__init__(_explained(status, reason, message, call))

    @property
    def is_expired(self) -> bool:
        """Whether the server has dropped, or not yet reached, the resource version of the call."""
        # After a restore of etcd the versions begin again below those that clients hold.
        too_large = self.status == _GATEWAY_TIMEOUT and "Too large resource" in self.message
        return self.status == _GONE or too_large


def _explained(status: int, reason: str, message: str, call: ApiCall) -> str:
    resource = call.resource
    rule = resource.plural + (f"/{call.subresource}" if call.subresource else "")
    target = " ".join(each for each in (rule or call.path, call.name) if each)
    where = "" if call.namespace is None else f" in namespace {call.namespace}"
    facts = ": ".join(each for each in (reason, message) if each)
    text = f"cannot {call.verb} {target}{where}: {status} {facts}".rstrip()
    if status == _FORBIDDEN and rule:
        role = "ClusterRole" if call.namespace is None else f"Role in {call.namespace}"
        text += (
            f"; allow it by a rule of a {role}: apiGroups: {_quoted(resource.group)}, "
            f"resources: {_quoted(rule)}, verbs: {_quoted(call.verb)}"
        )
    elif status == _NOT_FOUND and call.name is None and not message.startswith("namespaces "):
        text += f"; is the CRD of {resource.kind} in {resource.api_version} installed?"
    return text


def _quoted(word: str) -> str:
    return json.dumps([word])


def refusal(call: ApiCall, code: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """Return the error for a response with an HTTP status other than 2xx."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        text = " ".join(body.decode("utf-8", "replace").split())
        status = Status(message=text[:_MAX_FOREIGN_TEXT])
    # Kubernetes sends seconds, never a date.
    wait = headers.get("retry-after", "")
    seconds = float(wait) if wait.isdecimal() else None
    return ApiError(code, status.reason, status.message, call, retry_after_seconds=seconds)
