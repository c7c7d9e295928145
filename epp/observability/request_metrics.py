"""Counters and histograms of requests, by model, target model, fairness id and priority.

Children are bound once per label set (:meth:`Requests.dispatched`), so that an observation on the
request path is one call on plain numbers (:mod:`.metric_children`). All four labels may come from
clients, and a label set has up to 280 lines, so the size of the page limits the number of sets
(:mod:`.label_sets`). A set without space for histograms keeps its counters.
"""

from typing import ClassVar, Final

from epp.observability.known_names import OTHER, KnownNames, Standing
from epp.observability.label_sets import Labels, LabelSet, LabelSets
from epp.observability.metric_children import Counter, Histogram
from epp.observability.metric_families import Maker
from epp.observability.page_budget import PageBudget, SeriesClaim

# The Go EPP's buckets, so that its dashboards and rules keep working.
# Floats for seconds, ints for bytes: comparing one with the other costs 0.1 us an observation.
_LATENCY: tuple[float, ...] = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0),
    *(10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0),
    *(900.0, 1200.0, 1800.0, 2700.0, 3600.0),
)
# First byte: as for latencies, but no response begins after more than two minutes.
_FIRST_BYTE = _LATENCY[: _LATENCY.index(120.0) + 1]
# Tokens and bytes of responses; 32778 is the Go EPP's.
_RESPONSE_BYTES: tuple[int, ...] = (
    *(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536),
)
_PROMPT_TOKENS: tuple[int, ...] = (*_RESPONSE_BYTES, 131072, 262144, 524288, 1048576)
_RESPONSE_TOKENS = _RESPONSE_BYTES[: _RESPONSE_BYTES.index(8192) + 1]
_BETWEEN_CHUNKS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0),
)
_PER_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# Between two tokens of a stream; 2.05 ms is the Go EPP's.
_BETWEEN_TOKENS: tuple[float, ...] = (
    *(0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.6, 0.8, 1.0, 2.0),
)
_REQUEST_BYTES = tuple(64 << n for n in range(25))  # 64 B to 1 GiB


REQUEST_LABELS: Final = ("model_name", "target_model_name", "fairness_id", "priority")

MAX_CODES: Final = 64
"""Limit on error codes, which plugins may define, too; further ones are ``other``."""
MAX_CODE_CHARS: Final = 64

RequestKey = tuple[str, str, str, str]
"""Values of ``REQUEST_LABELS``."""


class Families:
    """The families of requests and responses."""

    first_byte_bounds: ClassVar[tuple[float, ...]] = _FIRST_BYTE
    """Buckets of ``first_byte``."""

    def __init__(self, make: Maker) -> None:
        self.total = make.counter(
            "request_total", "Total number of processed requests.", REQUEST_LABELS
        )
        self.errors = make.counter(
            "request_error_total",
            "Total number of request errors by class (BadRequest, ServiceUnavailable, …).",
            (*REQUEST_LABELS, "error_code"),
        )
        self.duration = make.histogram(
            "request_duration_seconds",
            "End-to-end request latency in seconds: request headers to end of stream.",
            REQUEST_LABELS,
            _LATENCY,
        )
        self.size = make.histogram(
            "request_size_bytes", "Incoming request body size.", REQUEST_LABELS, _REQUEST_BYTES
        )
        self.running = make.gauge(
            "request_running", "Requests in progress, sent to an endpoint.", REQUEST_LABELS
        )
        self.response_size = make.histogram(
            "response_size_bytes", "Outgoing response body size.", REQUEST_LABELS, _RESPONSE_BYTES
        )
        self.prompt_tokens = make.histogram(
            "request_input_tokens",
            "Input token count per request, as the model server reports it.",
            REQUEST_LABELS,
            _PROMPT_TOKENS,
        )
        self.tokens = make.histogram(
            "request_output_tokens",
            "Output token count per request, as the model server reports it.",
            REQUEST_LABELS,
            _RESPONSE_TOKENS,
        )
        self.cached_tokens = make.histogram(
            "request_cached_tokens",
            "Prompt tokens read from a cache, as the model server reports it.",
            REQUEST_LABELS,
            _PROMPT_TOKENS,
        )
        self.first_byte = make.histogram(
            "request_ttft_seconds",
            "Request headers to the first bytes of the response body; streaming is true or false.",
            (*REQUEST_LABELS, "streaming"),
            _FIRST_BYTE,
        )
        self.per_token_streamed = make.histogram(
            "request_streaming_tpot_seconds",
            "(latency - time to first byte) / (output tokens - 1) of streamed responses.",
            REQUEST_LABELS,
            _BETWEEN_TOKENS,
        )
        self.between_chunks = make.histogram(
            "request_streaming_itl_seconds",
            "Time between two consecutive chunks of the body of a streamed response.",
            REQUEST_LABELS,
            _BETWEEN_CHUNKS,
        )
        self.per_token = make.histogram(
            "request_ntpot_seconds", "Latency / output tokens.", REQUEST_LABELS, _PER_TOKEN
        )

        self._of_responses = (
            self.response_size,
            self.prompt_tokens,
            self.tokens,
            self.cached_tokens,
            self.per_token,
            self.per_token_streamed,
            self.between_chunks,
        )

    def counter_bytes(self, labels: Labels) -> int:
        """Return the length of the counters of a label set, without its errors."""
        return self.total.cost(*labels) + self.running.cost(*labels)

    def histogram_bytes(self, labels: Labels) -> int:
        """Return the length of the histograms of its requests."""
        return self.duration.cost(*labels) + self.size.cost(*labels)

    def response_bytes(self, labels: Labels) -> int:
        """Return the length of the histograms of its responses."""
        own = sum(family.cost(*labels) for family in self._of_responses)
        return own + 2 * self.first_byte.cost(*labels, "false")

    def remove(self, labels: Labels) -> None:
        """Remove a label set from the page, except its errors."""
        for family in (self.total, self.running, self.duration, self.size, *self._of_responses):
            family.remove(*labels)
        for streaming in ("true", "false"):
            self.first_byte.remove(*labels, streaming)


class ResponseMetrics:
    """The bound children of one label set, for responses whose bodies were seen."""

    __slots__ = (
        "between_chunks",
        "cached_tokens",
        "first_byte",
        "per_token",
        "per_token_streamed",
        "prompt_tokens",
        "size",
        "tokens",
    )

    def __init__(self, families: Families, labels: Labels) -> None:
        self.size = families.response_size.labels(*labels)
        self.prompt_tokens = families.prompt_tokens.labels(*labels)
        self.tokens = families.tokens.labels(*labels)
        self.cached_tokens = families.cached_tokens.labels(*labels)
        self.per_token = families.per_token.labels(*labels)
        self.per_token_streamed = families.per_token_streamed.labels(*labels)
        self.between_chunks = families.between_chunks.labels(*labels)
        self.first_byte = {
            is_streamed: families.first_byte.labels(*labels, str(is_streamed).lower())
            for is_streamed in (False, True)
        }


class RequestMetrics(LabelSet):
    """The bound children of one label set.

    Attributes:
        total: Requests that were dispatched.
        running: Requests in progress.
        duration: Duration; of another set if there is no space for histograms.
        size: Length of request bodies; likewise.
        awaits_proof: Whether a success response would prove a name.
    """

    __slots__ = (
        "_errors",
        "_has_histograms",
        "_has_response",
        "_requests",
        "_response",
        "awaits_proof",
        "duration",
        "running",
        "size",
        "total",
    )

    duration: Histogram
    size: Histogram

    def __init__(self, requests: "Requests", labels: Labels, claim: SeriesClaim) -> None:
        super().__init__(labels, claim)
        self._requests = requests
        self._response: ResponseMetrics | None = None
        self._errors: dict[str, Counter] = {}
        self._has_response = self._has_histograms = False
        self.total = requests.families.total.labels(*labels)
        self.running = requests.families.running.labels(*labels)
        self.awaits_proof = claim.standing is Standing.UNKNOWN or OTHER in labels[:2]

    @property
    def response(self) -> ResponseMetrics:
        """The children for responses, created for the first response body."""
        if self._response is None:
            families = self._requests.families
            instead = self._requests.sets.claim(self, families.response_bytes, is_detail=True)
            self._has_response = instead is None
            self._response = (
                ResponseMetrics(families, self.labels) if instead is None else instead.response
            )
        return self._response

    def error(self, code: str) -> None:
        """Count a request that ended with an error of class ``code``."""
        counter = self._errors.get(code)
        if counter is None:
            self._first_error(self._requests.capped_code(code))
        else:
            counter.inc()

    def prove(self, model: str, target_model: str) -> None:
        """Record that a model server has returned a success.

        Args:
            model: The model that the client requested.
            target_model: The model that the server received. If it differs, a header may have set
                it, and the response proves nothing about ``model``.
        """
        self._requests.names.prove(target_model)
        if OTHER not in self.labels[:2] and model == target_model:
            self.awaits_proof = False
            self._requests.sets.judge_again(self)
            self.retry()

    def bind_histograms(self) -> None:
        """Bind ``duration`` and ``size``: its own if there is space, else those of another set."""
        if self._has_histograms:
            return
        families = self._requests.families
        instead = self._requests.sets.claim(self, families.histogram_bytes, is_detail=True)
        if instead is None:
            self.duration = families.duration.labels(*self.labels)
            self.size = families.size.labels(*self.labels)
            self._has_histograms = True
        else:
            instead.bind_histograms()
            self.duration, self.size = instead.duration, instead.size

    @property
    def activity(self) -> float:
        return self.total.value + sum(error.value for error in self._errors.values())

    @property
    def is_busy(self) -> bool:
        return self.running.value != 0

    def retry(self) -> None:
        if not self._has_histograms:
            self._requests.forget(self.labels)
        if not self._has_response:
            self._response = None

    def remove(self) -> None:
        self._requests.forget(self.labels)
        self._requests.families.remove(self.labels)
        for code in self._errors:
            self._requests.families.errors.remove(*self.labels, code)

    def _first_error(self, code: str) -> None:
        counter = self._errors.get(code)
        if counter is None:
            errors = self._requests.families.errors
            instead = self._requests.sets.claim(self, lambda labels: errors.cost(*labels, code))
            if instead is not None:
                instead.error(code)
                return
            counter = self._errors[code] = errors.labels(*self.labels, code)
        counter.inc()


class Requests:
    """The label sets of requests.

    Args:
        make: Declares the families.
        budget: The budget of the page.
        names: Returns the standing of names.
    """

    def __init__(self, make: Maker, budget: PageBudget, names: KnownNames) -> None:
        self.families = Families(make)
        self.names = names
        self.sets: LabelSets[RequestMetrics] = LabelSets(
            budget,
            judge=names.request,
            last=lambda _: (OTHER,) * len(REQUEST_LABELS),
            make=lambda labels, claim: RequestMetrics(self, labels, claim),
            cost=self.families.counter_bytes,
        )
        self._dispatched: dict[RequestKey, RequestMetrics] = {}
        """Fully bound sets, by the labels in the requests."""
        self._codes: set[str] = set()

    def dispatched(
        self, model: str, target_model: str, fairness_id: str, priority: int
    ) -> RequestMetrics:
        """Return the children for a request that is sent to an endpoint."""
        key = (model, target_model, fairness_id, str(priority))
        return self._dispatched.get(key) or self._bind(key)

    def refused(
        self, model: str, target_model: str, fairness_id: str, priority: int
    ) -> RequestMetrics:
        """Return the children for a request that the EPP itself refuses."""
        return self.sets.bind((model, target_model, fairness_id, str(priority)))

    def forget(self, labels: Labels) -> None:
        """Look ``labels`` up in the table again at the next request."""
        self._dispatched.pop(labels, None)  # type: ignore[arg-type] # they are four

    def capped_code(self, code: str) -> str:
        """Return ``code``, or ``other`` if there are too many already."""
        if code in self._codes:
            return code
        if len(self._codes) >= MAX_CODES or len(code) > MAX_CODE_CHARS:
            return OTHER
        self._codes.add(code)
        return code

    def _bind(self, key: RequestKey) -> RequestMetrics:
        bound = self.sets.bind(key)
        bound.bind_histograms()
        if bound.labels == key:
            self._dispatched[key] = bound
        return bound
