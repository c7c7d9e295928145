"""The contract of session plugins."""

from collections.abc import Mapping

from epp.flow_control.sessions.points import ExtensionPoints
from epp.flow_control.sessions.session import Session


class SessionPlugin:
    """Registers functions that order jobs, refuse or score nodes, and account for resources.

    One object is created per configured plugin; it lives as long as the configuration.
    """

    name: str
    """The name in explanations, metrics and logs."""

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        """Register functions for all sessions; called once.

        Event handlers registered here are also called for tasks that start, end or move while no
        session is open.
        """

    def on_session_open(self, ssn: Session) -> None:
        """Register functions for this session; called in configured order.

        They are removed when the session closes. The session sees all jobs in flight.
        """

    def on_session_close(self, ssn: Session) -> None:
        """Clean up after the session; called in reverse order, even if an action failed."""

    def dump_state(self) -> Mapping[str, object] | None:
        """Return the plugin's state for ``/debug/plugins/state``; None if it has none.

        See :meth:`epp.scheduling.Plugin.dump_state`.
        """
        return None


class PluginError(ValueError):
    """A plugin cannot be built or configured; the message names it and the reason."""
