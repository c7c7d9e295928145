"""``header-profile-handler``: runs the profile that a request header names.

It is for a coordinator that sends the stages of a request one by one. If only one profile is
configured, it always runs. Otherwise the header ``headerName`` names the profile; spaces around the
name are ignored. Without the header, or if it is blank, ``defaultProfile`` runs. A request with the
name of a profile that does not exist is refused with 400.

Example::

    plugins:
      - type: header-profile-handler
        parameters: {headerName: EPP-Profile, defaultProfile: decode}
    schedulingProfiles:
      - {name: prefill, plugins: []}
      - {name: decode, plugins: []}
"""

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from epp.scheduling import (
    CycleState,
    LLMRequest,
    ProfileHandler,
    ProfileLoopError,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
    UnknownProfileError,
)

DEFAULT_HEADER: Final = "EPP-Profile"
DEFAULT_PROFILE: Final = "decode"
_NO_MORE: Mapping[str, SchedulerProfile] = {}
_LONGEST_SHOWN: Final = 64
"""Maximum characters of a client's profile name in errors and logs."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``header-profile-handler``."""

    header_name: str = DEFAULT_HEADER
    """Header that names the profile to run; "" for ``EPP-Profile``."""
    default_profile: str = DEFAULT_PROFILE
    """Profile of requests without the header; "" for ``decode``."""


class HeaderProfileHandler(ProfileHandler):
    """Runs the profile that the request names."""

    type: ClassVar[str] = "header-profile-handler"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._header = params.header_name.strip() or DEFAULT_HEADER
        self._key = self._header.lower()
        self._default = params.default_profile.strip() or DEFAULT_PROFILE

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        if results:
            return _NO_MORE
        if len(profiles) == 1:
            return profiles
        asked = request.headers.get(self._key, "").strip()
        name = asked or self._default
        if name not in profiles:
            known = ", ".join(map(repr, sorted(profiles))) or "none"
            if asked:
                shown = name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}..."
                raise UnknownProfileError(
                    f"header {self._header!r} asks for profile {shown!r}; there are: {known}"
                )
            raise ProfileLoopError(
                f"profile handler {self.name!r} ({self.type}): defaultProfile is {name!r};"
                f" configured: {known}"
            )
        return {name: profiles[name]}

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        ((name, result),) = results.items()
        if result.error is not None:
            raise result.error
        return SchedulingResult(results, name)
