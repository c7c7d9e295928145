"""``example-session-plugin``: keeps a tenant off the endpoints with a label.

Reads:  the fairness id of requests, the labels of endpoints.
Example::

    featureGates: [flowControl]
    extensions:
      sessions:
        plugins:
          file:example_session_plugin.py:ExampleSessionPlugin:
            arguments: {tenant: batch, label: tier, value: gold}
"""

import msgspec

from epp.flow_control.sessions import ExtensionPoints, Job, Node, SessionPlugin, Task


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-session-plugin``."""

    tenant: str = "batch"
    """Fairness id of the tenant."""
    label: str = "tier"
    """Label of endpoints."""
    value: str = "gold"
    """Value of the label on the endpoints that the tenant must not use."""


class ExampleSessionPlugin(SessionPlugin):
    """Keeps a tenant off the endpoints with a label."""

    name = "example-session-plugin"

    def __init__(self, params: Params) -> None:
        self._params = params

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_predicate_fn(self._refusal)

    def _refusal(self, task: Task, job: Job, node: Node) -> str | None:
        params = self._params
        if task.namespace == params.tenant and node.labels.get(params.label) == params.value:
            return f"{node.name} is not for tenant {params.tenant}"
        return None
