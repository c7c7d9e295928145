"""The validated settings of a load run.

Equal settings, the seed included, produce the same prompts, lengths and arrival times.
"""

import math
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, urlsplit

from epp.lab.load.errors import PlanError
from epp.lab.results.slo import Slo
from epp.lab.traffic.arrivals import ArrivalProcess, RatePiece, constant_rate
from epp.lab.traffic.lengths import Lengths, LogNormalLengths, NormalLengths
from epp.lab.traffic.mix import LabelMix
from epp.lab.traffic.workload import Workload

MIN_UNIQUE_CHARS = 16
"""Minimum length of a shared prefix, and of the rest of the prompt: each contains a number that
makes it unique."""


class Api(StrEnum):
    """The OpenAI endpoint that is called."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class ArrivalSpacing(StrEnum):
    """How open-loop arrivals are spaced."""

    POISSON = "poisson"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Settings of one load run.

    Set exactly one of `concurrency` (closed loop) and `rate` (open loop), and exactly one of
    `requests` and `duration_seconds`.

    Raises:
        PlanError: A field is out of range, or two fields contradict each other.
    """

    url: str
    """Base URL of the gateway, such as ``http://host:8080``; may be https and have a path. ``/v1``
    at its end is optional."""
    model: str
    """Model name of every request."""
    api: Api = Api.COMPLETIONS
    """Endpoint that is called."""
    concurrency: int | None = None
    """Closed loop: number of clients, each with one request in flight."""
    rate: float | None = None
    """Open loop: requests per second, sent regardless of how fast responses arrive."""
    arrivals: ArrivalSpacing = ArrivalSpacing.POISSON
    """Spacing of open-loop arrivals."""
    gamma_cv: float | None = None
    """Open loop: bursts, as gaps of a gamma distribution with this coefficient of variation."""
    stages: tuple[RatePiece, ...] = ()
    """Open loop: rates that follow one another, instead of `rate`."""
    workload: Workload | None = None
    """Requests to send, with their times, instead of generated prompts."""
    labels: LabelMix | None = None
    """Tenants, objectives, adapters and SLOs of generated prompts; a workload has its own."""
    requests: int | None = None
    """Number of requests to send."""
    duration_seconds: float | None = None
    """Seconds during which requests are sent; the run then waits for those in flight."""
    prompt_chars: int | Lengths = 512
    """Length of a prompt in characters, with its prefix: a number, or a distribution."""
    max_tokens: int | Lengths = 64
    """Requested output tokens per response."""
    stream: bool = True
    """Request server-sent events; without, the time to first token is not measured."""
    prefixes: int = 0
    """Number of different shared prefixes; every prompt begins with one of them. 0 for none."""
    prefix_chars: int = 0
    """Length of a shared prefix in characters; required with `prefixes`, and only then."""
    seed: int = 0
    """Seed of everything random: prompts, lengths, prefixes, arrival times, aborts."""
    abort_share: float = 0.0
    """Fraction (0.0-1.0) of requests that the client aborts at the first byte of the body, if the
    status is 2xx."""
    timeout_seconds: float = 60.0
    """Time limit of a request, connecting included."""
    slo: Slo = field(default_factory=Slo)
    """Objectives that a request must meet to count towards the goodput."""
    ignore_eos: bool = False
    """Ask for `max_tokens` tokens whatever the model generates; an extension of vLLM, SGLang."""
    http_version: int = 1
    """1 for HTTP/1.1, or 2; without TLS, HTTP/2 begins at once ("prior knowledge")."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers added to every request, e.g. ``("authorization", "Bearer …")``."""

    def __post_init__(self) -> None:
        _check_url(self.url)
        if not self.model:
            raise PlanError("model: must not be empty")
        for name, kind in (("api", Api), ("arrivals", ArrivalSpacing)):
            try:
                object.__setattr__(self, name, kind(getattr(self, name)))
            except ValueError:
                known = ", ".join(kind)
                raise PlanError(f"{name}: {getattr(self, name)!r} is not one of {known}") from None
        self._check_arrivals()
        if self.http_version not in {1, 2}:
            raise PlanError(f"http_version: {self.http_version} is neither 1 nor 2")
        for name in ("prompt_chars", "max_tokens", "timeout_seconds"):
            if not isinstance(getattr(self, name), Lengths):
                self._check_positive(name)
        self._check_slo()
        self._check_prompts()
        if not 0.0 <= self.abort_share <= 1.0:
            raise PlanError(f"abort_share: {self.abort_share} is not within 0.0-1.0")
        for key, value in self.headers:
            if not key or any(c in key + value for c in "\r\n") or not (key + value).isascii():
                raise PlanError(f"headers: {key!r} is empty, not ASCII or has a line break")

    @property
    def address(self) -> SplitResult:
        """The parsed `url`."""
        return urlsplit(self.url)

    @property
    def port(self) -> int:
        """Port of the `url`."""
        return self.address.port or (443 if self.address.scheme == "https" else 80)

    @property
    def clients(self) -> int | None:
        """Closed loop: number of clients; None in an open loop."""
        return self.workload.concurrency if self.workload else self.concurrency

    @property
    def arrival_process(self) -> ArrivalProcess | None:
        """Open loop: arrival times of generated prompts; None if there are none."""
        if self.rate is None and not self.stages:
            return None
        cv = 1.0 if self.arrivals is ArrivalSpacing.POISSON else 0.0
        return ArrivalProcess(
            pieces=self.stages or constant_rate(self.rate or 0.0),
            cv=cv if self.gamma_cv is None else self.gamma_cv,
        )

    @property
    def path(self) -> str:
        """Path of the request, e.g. ``/v1/chat/completions``."""
        base = self.address.path.rstrip("/").removesuffix("/v1")
        return base + ("/v1/chat/completions" if self.api is Api.CHAT else "/v1/completions")

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values, without `headers`, which may contain secrets."""
        left_out = {"headers", "workload", "stages", "slo", "labels"}
        values = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in left_out
        }
        values["slo"] = asdict(self.slo)
        values["labels"] = asdict(self.labels) if self.labels else None
        values["stages"] = [asdict(stage) for stage in self.stages]
        values["traffic"] = dict(self.workload.description) if self.workload else None
        for name in ("prompt_chars", "max_tokens"):
            if isinstance(value := getattr(self, name), Lengths):
                values[name] = str(value)
        return values

    def _check_arrivals(self) -> None:
        if self.workload is not None:
            self._check_workload()
            return
        if self.stages:
            for name in ("concurrency", "rate"):
                if getattr(self, name) is not None:
                    raise PlanError(f"{name}: goes without stages, which have their own rates")
            for name in ("requests", "duration_seconds"):
                if getattr(self, name) is not None:
                    self._check_positive(name)
            if not any(piece.area for piece in self.stages):
                raise PlanError("stages: the rate is 0 all the time; give a rate above 0")
        else:
            self._check_pair("concurrency", "rate")
            self._check_pair("requests", "duration_seconds")
        if self.gamma_cv is not None:
            self._check_positive("gamma_cv")
            if self.concurrency is not None:
                raise PlanError("gamma_cv: a closed loop has no arrival times; give a rate")

    def _check_workload(self) -> None:
        for name in ("concurrency", "rate", "stages", "gamma_cv", "requests"):
            if getattr(self, name):
                raise PlanError(f"{name}: goes without a workload, which has its own arrivals")
        for name in ("labels", "abort_share"):
            if getattr(self, name):
                raise PlanError(f"{name}: goes without a workload")
        if self.duration_seconds is not None:
            self._check_positive("duration_seconds")

    def _check_slo(self) -> None:
        for each in fields(self.slo):
            seconds = getattr(self.slo, each.name)
            if seconds is None:
                continue
            if not (math.isfinite(seconds) and seconds > 0):
                raise PlanError(f"slo: {each.name}: {seconds} is not a positive number")
            if not self.stream and each.name != "latency_seconds":
                raise PlanError(f"slo: {each.name}: requires streaming")

    def _check_pair(self, first: str, second: str) -> None:
        given = [name for name in (first, second) if getattr(self, name) is not None]
        if len(given) != 1:
            raise PlanError(f"exactly one of {first} and {second} must be given")
        self._check_positive(given[0])

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        if not (math.isfinite(value) and value > 0):
            raise PlanError(f"{name}: {value} is not a positive number")
        if "int" in str(_TYPES[name]) and value != int(value):
            raise PlanError(f"{name}: {value} is not a whole number")

    def _check_prompts(self) -> None:
        if self.prefixes < 0 or self.prefix_chars < 0:
            raise PlanError("prefixes and prefix_chars: must not be negative")
        if bool(self.prefixes) != bool(self.prefix_chars):
            raise PlanError("prefixes and prefix_chars: give both or neither")
        if self.prefixes and self.prefix_chars < MIN_UNIQUE_CHARS:
            raise PlanError(f"prefix_chars: {self.prefix_chars} is below {MIN_UNIQUE_CHARS}")
        shortest = self.prompt_chars
        if isinstance(shortest, LogNormalLengths):
            shortest = shortest.median  # shorter prompts are lengthened to the minimum
        elif isinstance(shortest, NormalLengths):
            shortest = shortest.mean
        elif not isinstance(shortest, int):
            shortest = shortest.least
        if shortest - self.prefix_chars < MIN_UNIQUE_CHARS:
            raise PlanError(
                f"prompt_chars: {shortest} leaves fewer than {MIN_UNIQUE_CHARS} characters "
                f"after the shared prefix (prefix_chars is {self.prefix_chars})"
            )


_TYPES = {each.name: each.type for each in fields(LoadPlan)}


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise PlanError(f"url: {url!r}: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise PlanError(f"url: {url!r} is not http://host[:port] or https://host[:port]")
    if parts.query or parts.fragment or parts.username is not None:
        raise PlanError(f"url: {url!r} must not have a query, a fragment or a user")
    if not url.isascii() or any(c.isspace() or not c.isprintable() for c in url):
        raise PlanError(f"url: {url!r} has a space or a character outside ASCII")
