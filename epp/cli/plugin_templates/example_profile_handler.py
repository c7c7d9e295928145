"""``example-profile-handler``: runs every profile; the first that finds an endpoint is the answer.

Example::

    plugins:
      - type: file:example_profile_handler.py:ExampleProfileHandler
      - type: queue-scorer
    schedulingProfiles:
      - name: preferred
        plugins: [{pluginRef: queue-scorer}]
      - name: fallback
        plugins: [{pluginRef: queue-scorer}]
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from epp.scheduling import (
    CycleState,
    LLMRequest,
    ProfileHandler,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-profile-handler``: none."""


class ExampleProfileHandler(ProfileHandler):
    """Answers with the first profile, in the order of the file, that found an endpoint."""

    type: ClassVar[str] = "example-profile-handler"

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

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        found = {name: result for name, result in results.items() if result.error is None}
        if not found:
            raise next(result.error for result in results.values() if result.error is not None)
        return SchedulingResult(found, primary=next(iter(found)))
