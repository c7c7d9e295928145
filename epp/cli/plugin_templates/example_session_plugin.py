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

from epp.flow_control.sessions import Arguments, ExtensionPoints, Job, Node, SessionPlugin, Task


class ExampleSessionPlugin(SessionPlugin):
    """Keeps a tenant off the endpoints with a label."""

    name = "example-session-plugin"

    def __init__(self, arguments: Arguments) -> None:
        self._tenant = arguments.get_str("tenant", "batch")
        self._label = arguments.get_str("label", "tier")
        self._value = arguments.get_str("value", "gold")

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_predicate_fn(self._refusal)

    def _refusal(self, task: Task, job: Job, node: Node) -> str | None:
        if task.namespace == self._tenant and node.labels.get(self._label) == self._value:
            return f"{node.name} is not for tenant {self._tenant}"
        return None
