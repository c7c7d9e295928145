"""What a load run sends: one validated record, from which everything else follows by its seed."""

import math
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, urlsplit

from epp.lab.load.errors import PlanError
from epp.lab.load.lengths import Lengths, LogNormalLengths, UniformLengths
from epp.lab.load.slo import Slo

MIN_UNIQUE_CHARS = 16
"""Room every prompt (and every shared prefix) keeps for the number that makes it distinct."""


class Api(StrEnum):
    """The OpenAI endpoint that is called."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class Arrivals(StrEnum):
    """How open-loop arrivals are spaced."""

    POISSON = "poisson"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One load run.

    Exactly one of `concurrency` (closed loop) and `rate` (open loop), and exactly one of `requests`
    and `duration_seconds`.

    Raises:
        PlanError: on construction, if a field is out of range or two contradict each other.
    """

    url: str
    """Base address of the gateway, ``http://host:port``; a path and a final ``/v1`` are allowed."""
    model: str
    """Model name put into every request."""
    api: Api = Api.COMPLETIONS
    """Endpoint that is called."""
    concurrency: int | None = None
    """Closed loop: clients, each with one request in flight."""
    rate: float | None = None
    """Open loop: requests per second, sent on time however slow the answers are."""
    arrivals: Arrivals = Arrivals.POISSON
    """Spacing of open-loop arrivals."""
    requests: int | None = None
    """Stop after so many requests."""
    duration_seconds: float | None = None
    """Start no request after so many seconds; those in flight are awaited."""
    prompt_chars: int | Lengths = 512
    """Length of a whole prompt, shared prefix included, in characters."""
    max_tokens: int | Lengths = 64
    """Tokens asked for per answer."""
    stream: bool = True
    """Ask for server-sent events; without them there is no time to first token."""
    prefixes: int = 0
    """Groups of prompts that share a prefix; 0: all prompts differ from the first character."""
    prefix_chars: int = 0
    """Length of the shared prefix in characters; only with `prefixes`."""
    seed: int = 0
    """Decides prompts, groups, arrival times and who leaves early."""
    abort_share: float = 0.0
    """Fraction (0.0-1.0) of clients that close the connection at the first byte of the answer."""
    timeout_seconds: float = 60.0
    """Longest wait for one whole answer, connecting included."""
    slo: Slo = field(default_factory=Slo)
    """What a good answer is, for the goodput."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers added to every request, e.g. ``("authorization", "Bearer …")``."""

    def __post_init__(self) -> None:
        _check_url(self.url)
        if not self.model:
            raise PlanError("model: must not be empty")
        for name, kind in (("api", Api), ("arrivals", Arrivals)):
            try:
                object.__setattr__(self, name, kind(getattr(self, name)))
            except ValueError:
                known = ", ".join(kind)
                raise PlanError(f"{name}: {getattr(self, name)!r} is not one of {known}") from None
        self._check_pair("concurrency", "rate")
        self._check_pair("requests", "duration_seconds")
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
    def path(self) -> str:
        """Path of the request, e.g. ``/v1/chat/completions``."""
        base = self.address.path.rstrip("/").removesuffix("/v1")
        return base + ("/v1/chat/completions" if self.api is Api.CHAT else "/v1/completions")

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready values, without `headers` (they may carry secrets)."""
        values = {key: value for key, value in asdict(self).items() if key != "headers"}
        for name in ("prompt_chars", "max_tokens"):
            if isinstance(value := getattr(self, name), Lengths):
                values[name] = str(value)
        return values

    def _check_slo(self) -> None:
        for each in fields(self.slo):
            seconds = getattr(self.slo, each.name)
            if seconds is None:
                continue
            if not (math.isfinite(seconds) and seconds > 0):
                raise PlanError(f"slo: {each.name}: {seconds} is not a positive number")
            if not self.stream and each.name != "latency_seconds":
                raise PlanError(f"slo: {each.name}: needs streaming, which shows single tokens")

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
            shortest = shortest.median  # prompts that would be too short get the least length
        elif isinstance(shortest, UniformLengths):
            shortest = shortest.least
        if shortest - self.prefix_chars < MIN_UNIQUE_CHARS:
            raise PlanError(
                f"prompt_chars: {shortest} leaves less than {MIN_UNIQUE_CHARS} characters "
                f"of its own to a prompt (prefix_chars is {self.prefix_chars})"
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
