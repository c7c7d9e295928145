"""A request as it was received, and one that is ready to be decided."""

from collections.abc import Mapping, Sequence

from epp.parsing import Parser
from epp.request_control.memory import UNCOUNTED, RequestMemory
from epp.request_control.pipeline import Pipeline
from epp.request_control.producer_run import ProducerRun
from epp.scheduling import Endpoint, Guard, LLMRequest
from epp.tracing import RequestTrace


class RawRequest:
    """A request as it was received, kept while it may be decided again in a dry run."""

    __slots__ = ("body", "decoded", "headers", "request_id", "subset", "target_model")

    def __init__(
        self,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes,
        decoded: bytes | None,
        subset: Sequence[str] | None,
    ) -> None:
        self.request_id = request_id
        self.headers = headers
        self.body = body
        self.decoded = decoded
        """The body without its content encoding, if it has been decoded already."""
        self.subset = subset
        self.target_model = ""
        """The model name that the operator's policies have set; "" if they have set none."""


class PreparedRequest:
    """A parsed request whose data producers have run, or are running.

    Args:
        pipeline: The pipeline whose producers have run, and whose profiles decide.
        producer_run: Holds the request and its cycle state.
        parser: The parser that read the body; None if none did.
        rewritten: The body with another model name; None if the received one is sent on.
        received_at: When the request headers arrived, in seconds of the clock.
        subset: Endpoints that the gateway allows, ``ip:port`` or ``ip``; None for the whole pool.
        memory: Counts the bytes that the request holds.
        raw: The request as it was received; None unless a dry run may need it.
        trace: None unless the request is traced.
        forced: The endpoint that it must go to (:mod:`.forced_endpoint`); "" for any.
    """

    __slots__ = (
        "candidates",
        "forced",
        "is_waiting",
        "memory",
        "parsed_by",
        "parser",
        "pipeline",
        "producer_run",
        "raw",
        "received_at",
        "rewritten",
        "subset",
        "trace",
    )

    def __init__(  # noqa: PLR0917 - keywords would cost more than what it does
        self,
        pipeline: Pipeline,
        producer_run: ProducerRun,
        parser: Guard[Parser] | None,
        rewritten: bytes | None,
        received_at: float,
        subset: Sequence[str] | None,
        memory: RequestMemory = UNCOUNTED,
        raw: RawRequest | None = None,
        trace: RequestTrace | None = None,
        forced: str = "",
    ) -> None:
        self.pipeline = pipeline
        self.producer_run = producer_run
        self.parser = parser
        self.rewritten = rewritten
        self.received_at = received_at
        self.subset = subset
        self.memory = memory
        self.raw = raw
        self.trace = trace
        self.forced = forced
        self.candidates: Sequence[Endpoint] = ()
        """Endpoints of the last choice."""
        self.parsed_by: Pipeline | None = None
        """The pipeline that parsed it, if a reload came while it waited; None for `pipeline`."""
        self.is_waiting = False
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
