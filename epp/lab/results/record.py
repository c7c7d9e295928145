"""The outcome of one request, from which summaries are computed."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from epp.lab.results.accounts import EppChoice, OracleChoice, ServerAccount


class ErrorKind(StrEnum):
    """Why a request failed."""

    REFUSED = "refused"
    """The connection was refused."""
    CONNECT = "connect"
    """Connecting failed for another reason: DNS, routing, TLS, file descriptors."""
    RESET = "reset"
    """The connection was closed before the response was complete."""
    TIMEOUT = "timeout"
    """The response was not complete within the plan's `timeout_seconds`."""
    MALFORMED = "malformed"
    """The response is not HTTP, or its body not the expected JSON."""
    STATUS = "status"
    """The status is outside 200-299; the report counts each status separately."""
    STREAM = "stream"
    """The event stream contained an error or ended without ``[DONE]``."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request; times are seconds after the start of the run."""

    index: int
    """Index of the request."""
    scheduled_at: float
    """When it was due (closed loop: when it was sent)."""
    started_at: float
    """When it was sent, connecting included."""
    finished_at: float
    """When the response was complete, or the request failed or was aborted."""
    status: int = 0
    """HTTP status; 0 without a response."""
    served_by: str = ""
    """Model server that the response names; empty if none."""
    first_byte_at: float | None = None
    """When the first byte of the body arrived."""
    token_times: Sequence[float] = ()
    """When each event with text arrived; empty without streaming."""
    has_all_token_times: bool = True
    """False if `token_times` has only the first and the last; then it says nothing of gaps."""
    output_tokens: int = 0
    """Output tokens according to `usage`, else the number of events with text."""
    prompt_tokens: int = 0
    """Prompt tokens according to `usage`."""
    cached_tokens: int = 0
    """Prompt tokens from the server's prefix cache, according to `usage`."""
    left_early: bool = False
    """Whether the client aborted the request on purpose (`abort_share`)."""
    error: ErrorKind | None = None
    """Kind of the error; None for success."""
    message: str = ""
    """Message of the error."""
    request_id: str = ""
    """Value of ``x-request-id``, by which other accounts are joined; empty if none."""
    tenant: str = ""
    """Fairness id; empty for none."""
    adapter: str = ""
    """LoRA adapter that the request names; empty for the base model."""
    session: str = ""
    """Conversation that the request belongs to; empty for none."""
    objective: str = ""
    """Name of the request's objective; empty for none."""
    server: ServerAccount | None = None
    """What the server did with the request; None if not known."""
    epp: EppChoice | None = None
    """What the endpoint picker decided; None if not known."""
    oracle: OracleChoice | None = None
    """The best choice; None if not known."""

    @property
    def worker(self) -> str:
        """Server of the request: by its own account, else as the response names it."""
        return (self.server and self.server.worker) or self.served_by

    @property
    def regret_seconds(self) -> float | None:
        """How much earlier the oracle's choice would have sent the first token."""
        if self.oracle is None or self.ttft_seconds is None:
            return None
        return self.ttft_seconds - self.oracle.ttft_seconds

    @property
    def ttft_seconds(self) -> float | None:
        """Time from sending to the first event with text; None without streaming."""
        return self.token_times[0] - self.started_at if self.token_times else None

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time per output token after the first; None without streaming or for one token."""
        after_first = self.output_tokens - 1
        if not self.token_times or after_first < 1:
            return None
        return (self.token_times[-1] - self.token_times[0]) / after_first

    @property
    def latency_seconds(self) -> float:
        """Time from sending to the end of the response."""
        return self.finished_at - self.started_at

    @property
    def succeeded(self) -> bool:
        """Whether the response was complete and without error."""
        return self.error is None and not self.left_early

    @property
    def error_label(self) -> str:
        """Label of the error in reports, such as ``timeout`` or ``http-503``."""
        if self.error is ErrorKind.STATUS:
            return f"http-{self.status}"
        return self.error.value if self.error else ""
