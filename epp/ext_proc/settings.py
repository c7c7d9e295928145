"""What an operator may set of the ext_proc boundary."""

from dataclasses import dataclass
from typing import Literal

ErrorBody = Literal["json", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtProcSettings:
    """Limits, and the form of the answers."""

    error_body: ErrorBody = "json"
    """``json``: an OpenAI error object; ``text``: the reference's ``inference error: …`` line."""
    retry_after_seconds: int = 1
    """Value of ``retry-after`` in answers with 429 and 503; 0 leaves the header out."""
    max_body_bytes: int = 64 << 20
    """Largest request body that is taken in, in bytes; a larger one is answered with 413."""
    max_header_bytes: int = 128 << 10
    """Most that a request's headers may take in Envoy's message, in bytes; more is answered with
    431. Envoy itself lets 60 KiB pass unless told otherwise."""
    destination_list: bool = True
    """Name every endpoint that the picker returned, best first; False names the best alone, for
    gateways that cannot take a list (Envoy's ORIGINAL_DST clusters answer one with 503)."""
    sample_usage: float = 0.0
    """Share of requests, 0.0 to 1.0, whose answers are asked for in adaptive mode, to read their
    usage. With less than 1.0 the token metrics are a sample of the requests, with 0.0 they are
    empty in that mode; each request asked for costs a message per chunk. Other modes ignore it."""
