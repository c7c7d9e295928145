"""The configured flow control behind a controller."""

from epp.flow_control import FlowControl, FlowController


def control_of(flow: FlowController) -> FlowControl:
    """Return the flow control that dispatches the controller's waiting requests."""
    assert flow.control is not None, "it was never on"
    return flow.control
