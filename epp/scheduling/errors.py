"""Errors raised by the scheduling framework."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

E = TypeVar("E", bound=BaseException)


class SchedulingError(Exception):
    """Base of every error that the framework raises for one request."""


class NoEndpointsError(SchedulingError):
    """The filters of a profile removed every endpoint, or the pool had none.

    Args:
        profile: Name of the profile.
        candidates: Number of endpoints before the filters.
        removed: Names of endpoints by the filter that removed them.
        failed: The filters that removed all endpoints because they failed.
        is_held: Whether a filter that ``holds`` requests removed the last ones.
    """

    def __init__(
        self,
        profile: str,
        candidates: int,
        removed: Mapping[str, Sequence[str]] | None = None,
        failed: Collection[str] = (),
        *,
        is_held: bool = False,
    ) -> None:
        removed = removed or {}
        if candidates == 0:
            text = f"profile {profile!r}: there is no endpoint to choose from"
        else:
            by = "; ".join(
                f"{name} {'failed and ' if name in failed else ''}removed {', '.join(names)}"
                for name, names in removed.items()
            )
            text = f"profile {profile!r}: filters removed all {candidates} endpoints ({by})"
        super().__init__(text)
        self.profile = profile
        self.candidates = candidates
        self.removed = removed
        self.is_held = is_held


class FilterFailedError(NoEndpointsError):
    """A filter that fails closed has failed, and no endpoint is left: a bug in that plugin."""


class DroppedError(SchedulingError):
    """A filter dropped the request, for example because the pool has no capacity for its kind."""

    def __init__(self, profile: str, by: str, reason: str) -> None:
        super().__init__(f"profile {profile!r}: {by} dropped the request: {reason}")
        self.profile = profile
        self.by = by
        self.reason = reason


class UnknownProfileError(SchedulingError):
    """The request names an unknown profile: an error of the client."""


class ProfileHandlerError(SchedulingError):
    """The profile handler raised: a bug in that plugin; the cause is chained."""


class ProfileLoopError(SchedulingError):
    """A profile handler broke the rules of the profile loop: a bug in that plugin."""


class PluginContractError(SchedulingError):
    """A plugin returned what its extension point forbids: a bug in that plugin."""


class ReservationError(RuntimeError):
    """A reservation was used after it was released: a bug in the caller."""


PLUGIN_FAULTS: Final = (Exception, SystemExit)
"""Errors that a guarded call catches: sys.exit() in a plugin ends neither process nor request."""


def caused(error: E, by: BaseException) -> E:
    """Return ``error`` with ``by`` as its cause; compiled code drops that of ``raise … from``."""
    error.__cause__ = by
    return error


def described(error: BaseException) -> str:
    """Return the text of a plugin's ``error``, even if its ``__str__`` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, which cannot be printed"


def without_request(error: BaseException) -> str:
    """Return the class of a plugin's ``error``, and its text only if this framework wrote it.

    The text of any other error may quote the request: a prompt, or a credential.
    """
    kind = type(error)
    is_own = isinstance(error, SchedulingError) and kind.__module__ == __name__
    return f"{kind.__name__}: {error}" if is_own else kind.__name__
