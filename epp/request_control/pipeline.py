"""The pipeline: the plugins of one graph, by extension point.

A pipeline never changes. A configuration reload gives the director another one between two
requests; open requests finish on the pipeline they began with, which reports when the last has
ended.

Every plugin call goes through its guard: a plugin that raises is skipped and counted. Only a
:class:`RequestError` of a hook that may refuse requests becomes the response to the client.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from epp.flow_control import SaturationDetector, SheddingAdmission
from epp.parsing import RequestParser
from epp.parsing.plugins import Usage
from epp.request_control.errors import RequestError, SaturatedError, ScreenedOutError
from epp.request_control.plugins import (
    Admitter,
    EndCause,
    PreRequest,
    RequestHeaderProcessor,
    ResponseBodyStart,
    ResponseComplete,
    ResponseFacts,
    ResponseHead,
    ResponseHeader,
    ResponseReporter,
    Screener,
)
from epp.request_control.producer_run import Step, plan
from epp.scheduling import (
    PLUGIN_FAULTS,
    CycleState,
    Endpoint,
    Guard,
    GuardRails,
    LLMRequest,
    Plugin,
    PluginContractError,
    ProfileResult,
    ResultWatch,
    Scheduler,
    SchedulerProfile,
    SchedulingResult,
    ShadowPick,
    ShadowProfile,
    call_each,
)

perf_counter: Final = time.perf_counter  # compiled code looks up an imported name at each use

_MAX_NUMBER: Final = 1e300
"""Largest number in metadata for the gateway, whose numbers are doubles."""


class ProfileOutline(NamedTuple):
    """Names of the plugins of a profile."""

    filters: tuple[str, ...]
    """In the order in which they run."""
    picker: str

    @classmethod
    def of(cls, profile: SchedulerProfile) -> "ProfileOutline":
        """Return the outline of ``profile``."""
        return cls(tuple(each.name for each in profile.filters), profile.picker.name)


class Pipeline:
    """The hooks of one plugin graph, in its order."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        request_parser: RequestParser | None = None,
        header_processors: Sequence[Guard[RequestHeaderProcessor]] = (),
        producers: Sequence[Step] = (),
        screeners: Sequence[Guard[Screener]] = (),
        admitters: Sequence[Guard[Admitter]] = (),
        shadows: Sequence[ShadowProfile] = (),
        pre_request: Sequence[Guard[PreRequest]] = (),
        response_header: Sequence[Guard[ResponseHeader]] = (),
        body_start: Sequence[Guard[ResponseBodyStart]] = (),
        response_reporters: Sequence[Guard[ResponseReporter]] = (),
        response_complete: Sequence[Guard[ResponseComplete]] = (),
        admission: SheddingAdmission | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.admission = admission
        self.request_parser = request_parser or RequestParser(())
        self.header_processors = header_processors
        self.producers = producers
        self.screeners = screeners
        self.admitters = admitters
        self.shadows = shadows
        self.outlines: Mapping[str, ProfileOutline] = {
            each.name: ProfileOutline.of(each)
            for each in (*scheduler.profiles.values(), *(shadow.profile for shadow in shadows))
        }
        """All profiles by name, including shadow profiles; they hold no references to plugins."""
        self.pre_request = pre_request
        self._checks_chosen = not all(guard.plugin.keeps_result for guard in pre_request)
        self.response_header = response_header
        self.body_start = body_start
        self.response_reporters = response_reporters
        self.response_complete = response_complete
        """Hooks for a request whose response reported its tokens."""
        self.complete_without_usage = tuple(
            guard for guard in response_complete if not guard.plugin.only_with_usage
        )
        """Hooks for any other request."""
        self.open_requests = 0
        """Routed requests and pending decisions that use it and are not closed yet."""
        self._when_idle: list[Callable[[], None]] = []

    @classmethod
    def of(
        cls,
        plugins: Iterable[Plugin],
        scheduler: Scheduler,
        guards: GuardRails,
        shadows: Sequence[ShadowProfile] = (),
        detector: SaturationDetector | None = None,
        *,
        parsers: Sequence[Plugin] | None = None,
    ) -> "Pipeline":
        """Return the pipeline of a graph.

        Args:
            plugins: In the order in which they run; the writers of a key before its readers.
            scheduler: Chooses endpoints.
            guards: Makes the guards of the hooks.
            shadows: Shadow profiles, which run without effect on the choice.
            detector: Detects a full pool, which refuses sheddable requests; None for never.
            parsers: In the order of the configuration; by default those among ``plugins``.
        """
        known = tuple(plugins)
        return cls(
            scheduler,
            request_parser=RequestParser.of(known if parsers is None else parsers, guards),
            header_processors=guards.guards(
                "RequestHeaderProcessor", RequestHeaderProcessor, known
            ),
            producers=plan(known, guards),
            screeners=guards.guards("Screener", Screener, known),
            admitters=guards.guards("Admitter", Admitter, known),
            shadows=tuple(shadows),
            pre_request=guards.guards("PreRequest", PreRequest, known),
            response_header=guards.guards("ResponseHeader", ResponseHeader, known),
            body_start=guards.guards("ResponseBodyStart", ResponseBodyStart, known),
            response_reporters=guards.guards("ResponseReporter", ResponseReporter, known),
            response_complete=guards.guards("ResponseComplete", ResponseComplete, known),
            admission=None if detector is None else SheddingAdmission(detector, guards),
        )

    # --- the hooks ----------------------------------------------------------------------------

    def request_came(self, request: LLMRequest, state: CycleState) -> None:
        """Run the header processors on a parsed request.

        Raises:
            RequestError: One of them refuses the request.
        """
        call_each(
            self.header_processors,
            lambda hook: hook.process_request_headers(request, state),
            deliberate=(RequestError,),
            check=_RequestWatch(request).check,
        )

    def shed(self, request: LLMRequest, endpoints: Sequence[Endpoint]) -> None:
        """Refuse a sheddable request if the pool is full.

        Raises:
            SaturatedError: The request is refused.
        """
        admission = self.admission
        if admission is None:
            return
        saturation = admission.excess(request.priority, endpoints)
        if saturation is not None:
            raise SaturatedError(
                f"the pool is full: {admission.detector_name!r} reports a saturation of"
                f" {saturation:.2f}, where 1.00 is full; the request is sheddable (priority"
                f" {request.priority})"
            )

    def screened(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        """Return those of ``endpoints`` that every screener returns, in their order.

        Raises:
            ScreenedOutError: None is left.
        """
        kept: Sequence[Endpoint] = endpoints
        for guard in self.screeners:
            if guard.is_off:
                continue
            began = perf_counter()
            try:
                seen = set(guard.plugin.screen(request, endpoints, state))
            except PLUGIN_FAULTS as error:
                guard.failed(error, perf_counter() - began)
                continue
            kept = [endpoint for endpoint in kept if endpoint in seen]
            if seen.issubset(endpoints):
                guard.passed(perf_counter() - began)
            else:  # unknown endpoints are ignored; its restriction still applies
                what = f"screener {guard.plugin.name!r} returned an endpoint that it was not given"
                guard.failed(PluginContractError(what), perf_counter() - began)
        if not kept:
            names = ", ".join(repr(guard.plugin.name) for guard in self.screeners)
            raise ScreenedOutError(
                f"the screeners {names} excluded all {len(endpoints)} endpoints for this request"
            )
        return kept

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        """Call the admitters, each of which may refuse the request.

        Raises:
            RequestError: One does; usually an AdmissionDeniedError.
        """
        call_each(
            self.admitters,
            lambda hook: hook.admit(request, endpoints, state),
            deliberate=(RequestError,),
        )

    def shadow_picks(
        self,
        request: LLMRequest,
        endpoints: Sequence[Endpoint],
        state: CycleState,
        result: SchedulingResult,
        results: list[ProfileResult],
    ) -> Sequence[ShadowPick]:
        """Return the picks of the shadow profiles whose sample includes the request.

        Their whole results are added to ``results``.
        """
        picks = [shadow.run(request, endpoints, state, result, results) for shadow in self.shadows]
        return [pick for pick in picks if pick is not None]

    def chosen(
        self,
        request: LLMRequest,
        result: SchedulingResult,
        candidates: Sequence[Endpoint],
        state: CycleState,
    ) -> None:
        """Run the ``PreRequest`` hooks on a decision, whose endpoints are reserved.

        Args:
            request: The request.
            result: The chosen endpoints; an invalid change by a hook is undone before the next
                hook.
            candidates: The endpoints that the choice was made from.
            state: The request's cycle state.
        """
        call_each(
            self.pre_request,
            lambda hook: hook.pre_request(request, result, state),
            check=ResultWatch(result, candidates).check if self._checks_chosen else None,
        )

    def response_began(
        self, request: LLMRequest, head: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        """Run the ``ResponseHeader`` hooks on the head of a response."""
        call_each(
            self.response_header,
            lambda hook: hook.response_headers(request, head, served_by, state),
            check=lambda hook: _check_head(hook, head),
        )

    def body_began(self, request: LLMRequest, served_by: Endpoint, state: CycleState) -> None:
        """Run the ``ResponseBodyStart`` hooks on the first bytes of a response's body."""
        call_each(
            self.body_start, lambda hook: hook.response_body_started(request, served_by, state)
        )

    def reported(
        self, request: LLMRequest, usage: Usage | None, served_by: Endpoint, state: CycleState
    ) -> dict[str, dict[str, str | bool | float]]:
        """Return the metadata of a response; of two values for one key, the later one wins."""
        facts: dict[str, dict[str, str | bool | float]] = {}

        def add(reporter: Any) -> None:  # noqa: ANN401 - it may return anything
            reported = reporter.report_response(request, usage, served_by, state)
            for namespace, values in _checked(reported).items():
                facts.setdefault(namespace, {}).update(values)

        call_each(self.response_reporters, add)
        return facts

    def ended(
        self,
        hooks: Sequence[Guard[ResponseComplete]],
        request: LLMRequest,
        served_by: Endpoint,
        cause: EndCause,
        state: CycleState,
    ) -> None:
        """Run ``hooks`` at the end of a request."""
        call_each(hooks, lambda hook: hook.response_complete(request, served_by, cause, state))

    # --- open requests ------------------------------------------------------------------------

    def request_began(self) -> None:
        """Count a routed request or a pending decision that uses this pipeline."""
        self.open_requests += 1

    def request_ended(self) -> None:
        """Undo one :meth:`request_began`."""
        self.open_requests -= 1
        if self.open_requests == 0 and self._when_idle:
            calls, self._when_idle = self._when_idle, []
            for call in calls:
                call()

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call ``call`` once, when no request is open; immediately if none is."""
        if self.open_requests:
            self._when_idle.append(call)
        else:
            call()


def _checked(facts: Any) -> ResponseFacts:  # noqa: ANN401 - what a plugin returned
    """Return ``facts``.

    Raises:
        TypeError: They cannot be sent.
    """
    if not isinstance(facts, Mapping):
        raise TypeError(f"report_response() must return a mapping, {{}} for none, not {facts!r}")
    for namespace, values in facts.items():
        if not (_is_text(namespace) and isinstance(values, Mapping)):
            raise TypeError(
                f"report_response() returned {namespace!r}: {values!r}; it must be values by key"
            )
        for key, value in values.items():
            if not (_is_text(key) and (_is_text(value) or _is_number(value))):
                raise TypeError(
                    f"report_response() returned {key!r}: {value!r}; keys are texts, values texts,"
                    " booleans or finite numbers"
                )
    checked: ResponseFacts = facts
    return checked


def _is_text(value: object) -> bool:
    """Return whether ``value`` is a text that UTF-8 can encode."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _is_number(value: object) -> bool:
    """Return whether ``value`` is a number that a double can hold, or a boolean."""
    return isinstance(value, int | float) and -_MAX_NUMBER < value < _MAX_NUMBER


class _RequestWatch:
    """Checks that header processors leave the request's fields valid."""

    __slots__ = ("_kept", "_request")

    def __init__(self, request: LLMRequest) -> None:
        self._request = request
        self._kept = _facts(request)

    def check(self, plugin: Plugin) -> None:
        """Check the request after ``plugin`` has run.

        Raises:
            PluginContractError: A field has the wrong type; it is restored.
        """
        now, kept = _facts(self._request), self._kept
        if now == kept:
            return
        wrong = [name for name in kept if not isinstance(now[name], _KINDS[name])]
        if not wrong:
            self._kept = now
            return
        for name in wrong:
            setattr(self._request, name, kept[name])
        what = f"{wrong[0]} to {type(now[wrong[0]]).__name__}"
        raise PluginContractError(f"plugin {plugin.name!r} set the request's {what}")


_KINDS: Final[Mapping[str, type]] = {
    "request_id": str,
    "target_model": str,
    "model": str,
    "path": str,
    "headers": Mapping,
    "prompt": bytes,
    "tools": bytes,
    "cache_salt": str,
    "priority": int,
    "fairness_id": str,
}
"""The types of a request's fields."""


def _facts(request: LLMRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in _KINDS}


def _check_head(plugin: Plugin, head: ResponseHead) -> None:
    unchecked: Any = head  # a plugin may have set its field to anything
    given = unchecked.set_headers
    if not isinstance(given, dict):
        kind = type(given).__name__
        head.set_headers = {}
        raise PluginContractError(f"plugin {plugin.name!r} set the headers to set to {kind}")
