"""What one request did: the record every figure of the report is computed from."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class ErrorKind(StrEnum):
    """Why a request failed."""

    REFUSED = "refused"
    """Nobody listens at the address."""
    CONNECT = "connect"
    """Connecting failed otherwise: name, route, TLS, file descriptors."""
    RESET = "reset"
    """The connection ended before the answer did."""
    TIMEOUT = "timeout"
    """No whole answer within the plan's `timeout_seconds`."""
    MALFORMED = "malformed"
    """Bytes that are not HTTP, or an answer that is not the JSON asked for."""
    STATUS = "status"
    """A status outside 200-299; the report counts each one by itself."""
    STREAM = "stream"
    """An event stream that carried an error or ended without ``[DONE]``."""


class RequestFailedError(Exception):
    """A request failed; `HttpRequestSender` turns it into a `Record`."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One finished request; times are seconds after the start of the run."""

    index: int
    """Number of the request."""
    scheduled_at: float
    """When it was due (closed loop: when it began)."""
    started_at: float
    """When it began, before connecting."""
    finished_at: float
    """When its answer was complete, had failed, or the client had left."""
    status: int = 0
    """HTTP status; 0 if no answer began."""
    served_by: str = ""
    """Model server named by the answer; empty if none was."""
    first_byte_at: float | None = None
    """When the first byte of the body came."""
    token_times: Sequence[float] = ()
    """When each event with text came; empty without streaming."""
    output_tokens: int = 0
    """Tokens of the answer, by its `usage`, else events with text."""
    prompt_tokens: int = 0
    """Tokens of the prompt by `usage`."""
    cached_tokens: int = 0
    """Prompt tokens that came from the server's prefix cache by `usage`."""
    left_early: bool = False
    """The client left on purpose (`abort_share`)."""
    error: ErrorKind | None = None
    """Why it failed; None if it did not."""
    message: str = ""
    """Words to `error`."""

    @property
    def ttft_seconds(self) -> float | None:
        """From sending to the first event with text; None without streaming."""
        return self.token_times[0] - self.started_at if self.token_times else None

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None without streaming or for one token."""
        after_first = self.output_tokens - 1
        if not self.token_times or after_first < 1:
            return None
        return (self.token_times[-1] - self.token_times[0]) / after_first

    @property
    def latency_seconds(self) -> float:
        """From sending to the end of the answer."""
        return self.finished_at - self.started_at

    @property
    def succeeded(self) -> bool:
        """Whether a whole good answer came."""
        return self.error is None and not self.left_early

    @property
    def error_label(self) -> str:
        """The kind in reports: ``timeout``, or ``http-503`` for a status."""
        if self.error is ErrorKind.STATUS:
            return f"http-{self.status}"
        return self.error.value if self.error else ""
