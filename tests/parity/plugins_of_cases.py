"""Plugins in place of the mocks in the reference's director tests."""

from collections.abc import Mapping, Sequence

import msgspec

from epp.request_control.plugins import (
    REQUEST_HEADERS_TO_SET,
    AdmissionDeniedError,
    Admitter,
    PreRequest,
    RequestError,
    Screener,
)
from epp.scheduling import (
    CycleState,
    Endpoint,
    LLMRequest,
    ProfileHandler,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """No parameters."""


class Denying(Admitter):
    """Admits nothing."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        raise AdmissionDeniedError("denied by a plugin")


class Allowing(Admitter):
    """Admits everything."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        assert endpoints


class Hiding(Screener):
    """Shows nobody."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def screen(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> Sequence[Endpoint]:
        return []


class HeaderAdding(PreRequest):
    """Sets a header on the way to the model server."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        headers: dict[str, str | None] = {"x-added": result.endpoints[0].endpoint.name}
        state.write(REQUEST_HEADERS_TO_SET, headers)


class PreconditionFailedError(RequestError):
    """A plugin's own error, with a status."""

    status = 412
    code = "PreconditionFailed"


class TypedFailing(PreRequest):
    """Fails with a status."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        raise PreconditionFailedError("not here")


class UntypedFailing(PreRequest):
    """Fails with any exception."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        raise ValueError("a bug")


class Handler(ProfileHandler):
    """Runs all profiles."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        return {} if results else profiles


class FailingHandler(Handler):
    """Raises in the end."""

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        raise ValueError("a bug")


class EmptyHandler(Handler):
    """Returns nothing in the end."""

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        return None  # type: ignore[return-value] # what the case is about
