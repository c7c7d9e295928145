"""``example-profile-handler``: runs profiles until one finds an endpoint.

The result contains only that profile, because a request counts as in flight on the endpoint of
every profile in the result.

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
    """Returns the result of the first profile, in the order of the file, that found an endpoint."""

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
        if any(result.error is None for result in results.values()):
            return {}
        untried = [name for name in profiles if name not in results]
        return {name: profiles[name] for name in untried[:1]}

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        # The last profile that ran has found an endpoint, or none has.
        name, result = [*results.items()][-1]
        if result.error is not None:
            raise result.error
        return SchedulingResult({name: result}, primary=name)
