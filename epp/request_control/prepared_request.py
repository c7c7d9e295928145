"""A request as it was received, and one that is ready to be decided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epp.parsing import Parser
from epp.request_control.memory import UNCOUNTED, RequestMemory
from epp.request_control.pipeline import Pipeline
from epp.request_control.producer_run import ProducerRun
from epp.scheduling import Endpoint, Guard, LLMRequest
from epp.tracing import RequestTrace


@dataclass(slots=True, eq=False)
class RawRequest:
    """A request as it was received, kept while it may be decided again in a dry run."""

    request_id: str
    headers: Mapping[str, str]
    body: bytes
    decoded: bytes | None
    """The body without its content encoding, if it has been decoded already."""
    subset: Sequence[str] | None
    target_model: str = ""
    """The model name that the operator's policies have set; "" if they have set none."""


@dataclass(slots=True, eq=False)
class PreparedRequest:
    """A parsed request whose data producers have run, or are running."""

    pipeline: Pipeline
    """The pipeline whose producers have run, and whose profiles decide."""
    producer_run: ProducerRun
    """Holds the request and its cycle state."""
    parser: Guard[Parser] | None
    """The parser that read the body; None if none did."""
    rewritten: bytes | None
    """The body with another model name; None if the received one is sent on."""
    received_at: float
    """When the request headers came, in seconds of the clock."""
    subset: Sequence[str] | None
    """Endpoints that the gateway allows, ``ip:port`` or ``ip``; None for the whole pool."""
    memory: RequestMemory = UNCOUNTED
    """Counts the bytes that the request holds."""
    raw: RawRequest | None = None
    """The request as it was received; None unless a dry run may need it."""
    trace: RequestTrace | None = None
    """None unless the request is traced."""
    forced: str = ""
    """The endpoint that it must go to (:mod:`.forced_endpoint`); "" for any."""
    candidates: Sequence[Endpoint] = ()
    """Endpoints of the last choice."""
    parsed_by: Pipeline | None = None
    """The pipeline that parsed it, if a reload came while it waited; None for `pipeline`."""
    is_waiting: bool = False
    """Whether :meth:`begin_to_wait` was called."""

    @property
    def request(self) -> LLMRequest:
        return self.producer_run.request

    def begin_to_wait(self) -> None:
        """Count the prompt, which is kept only because the request waits; idempotent.

        Raises:
            HeldBytesError: There is no memory left for it.
        """
        if not self.is_waiting:
            self.is_waiting = True
            request = self.request
            self.memory.hold(len(request.prompt) + len(request.tools) + len(request.template))
