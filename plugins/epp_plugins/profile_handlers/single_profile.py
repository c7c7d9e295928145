"""``single-profile-handler``: runs the only profile and returns its result.

The request fails with the profile's error if it found no endpoint. A configuration with several
profiles needs another handler.

Example::

    plugins:
      - type: single-profile-handler
"""

from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar

import msgspec

from epp.scheduling import (
    CycleState,
    LLMRequest,
    ProfileHandler,
    ProfileLoopError,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
)

_NO_MORE: Mapping[str, SchedulerProfile] = {}


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``single-profile-handler``: none."""


class SingleProfileHandler(ProfileHandler):
    """Runs the only profile."""

    type: ClassVar[str] = "single-profile-handler"
    recomputable = True
    picks_once = True

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def profile_faults(self, profiles: Collection[str]) -> Iterable[str]:
        if len(profiles) == 1:
            return ()
        names = ", ".join(map(repr, sorted(profiles)))
        text = f"{self.type} runs a sole profile; configured: {names}; remove all but one"
        return (f"{text}, or use a handler that chooses among them",)

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        if results:
            return _NO_MORE
        if len(profiles) > 1:
            names = ", ".join(map(repr, sorted(profiles)))
            raise ProfileLoopError(
                f"profile handler {self.name!r} ({self.type}) takes exactly one profile,"
                f" {len(profiles)} are configured: {names}"
            )
        return profiles

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        ((name, result),) = results.items()
        if result.error is not None:
            raise result.error
        return SchedulingResult(results, name)
