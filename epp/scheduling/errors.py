"""Errors raised by the scheduling framework."""

from collections.abc import Mapping, Sequence


class SchedulingError(Exception):
    """Base of every error the framework raises for one request."""


class NoEndpointsError(SchedulingError):
    """The filters of a profile left no endpoint to score, or there was none to begin with."""

    def __init__(
        self, profile: str, candidates: int, removed: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        removed = removed or {}
        if candidates == 0:
            text = f"profile {profile!r}: there is no endpoint to choose from"
        else:
            by = "; ".join(f"{name} removed {', '.join(names)}" for name, names in removed.items())
            text = f"profile {profile!r}: filters removed all {candidates} endpoints ({by})"
        super().__init__(text)
        self.profile = profile
        self.candidates = candidates
        self.removed = removed


class ProfileLoopError(SchedulingError):
    """A profile handler broke the rules of the profile loop: a bug in that plugin."""


class PluginContractError(SchedulingError):
    """A plugin returned what its extension point forbids: a bug in that plugin."""


class ReservationError(RuntimeError):
    """A reservation was used after it was released: a bug in the caller."""
