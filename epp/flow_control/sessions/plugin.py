"""The contract of session plugins."""

from epp.flow_control.sessions.points import ExtensionPoints
from epp.flow_control.sessions.session import Session


class SessionPlugin:
    """Takes part in sessions: says who is next, where something fits, and keeps its own accounts.

    One object is built per configured plugin and lives as long as the configuration.
    """

    name: str
    """Its name in explanations, in metrics and in the log."""

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        """Register what counts in every session; called once.

        Handlers of events that are registered here are also called for what begins, ends or moves
        while no session is open.
        """

    def on_session_open(self, ssn: Session) -> None:
        """Register what counts in this session; called in configured order.

        It is gone when the session closes. The session sees everything that is in flight.
        """

    def on_session_close(self, ssn: Session) -> None:
        """Sum up; called in reverse order, also after an action that raised."""


class PluginError(ValueError):
    """A plugin cannot be built or configured; the text names it and says why."""
