"""Response bodies with the fields of vLLM 0.32.

This module has the base classes, which each API implements in its own module, and the bodies of
errors and of the list of models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from epp.lab.fleet.errors import VllmApiError
from epp.lab.fleet.sequence import FinishReason, Sequence

_encode = msgspec.json.encode


class ResponseFormat(ABC):
    """Encodes the response to one request."""

    @abstractmethod
    def whole(self, sequence: Sequence) -> bytes:
        """Return the body of a response that is not streamed."""


class StreamFormat(ResponseFormat):
    """Encodes the response as a complete body or as an event stream."""

    @abstractmethod
    def first(self, sequence: Sequence) -> bytes:
        """Return the events before the first token."""

    @abstractmethod
    def delta(self, text: str, reason: FinishReason | None) -> bytes:
        """Return the event of new text; `reason` is set for the last one."""

    @abstractmethod
    def last(self, sequence: Sequence) -> bytes:
        """Return the events after the last token."""


def event(name: str, fields: dict[str, Any]) -> bytes:
    """Return a named server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(fields))


def error_body(error: VllmApiError, path: bytes) -> bytes:
    """Return the error body of the API at `path`."""
    if path.startswith(b"/v1/messages"):
        reason = {"type": error.kind, "message": error.message}
        return _encode({"type": "error", "error": reason})
    fields = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.status,
    }
    return _encode({"error": fields})


def models_body(
    model: str, adapters: tuple[str, ...], *, max_model_len: int, created: int, owner: str
) -> bytes:
    """Return the list of the base model and its adapters."""
    return _encode(
        {
            "object": "list",
            "data": [
                _model_card(
                    model,
                    root=model,
                    parent=None,
                    max_model_len=max_model_len,
                    created=created,
                    owner=owner,
                ),
                *(
                    _model_card(
                        name,
                        root=f"/adapters/{name}",
                        parent=model,
                        max_model_len=None,
                        created=created,
                        owner=owner,
                    )
                    for name in adapters
                ),
            ],
        }
    )


def _model_card(
    name: str,
    *,
    root: str,
    parent: str | None,
    max_model_len: int | None,
    created: int,
    owner: str,
) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": owner,
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
