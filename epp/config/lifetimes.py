"""Close plugins when the last graph that contains them goes out of use.

A reload drops plugins while requests that were scheduled with them are still open. A graph is in
use from the swap until its last request has ended; a plugin is closed when no graph in use
contains it.
"""

from collections import Counter

from epp.config.graph import PluginGraph
from epp.config.instances import close_all


class PluginLifetimes:
    """Reference counts of plugins over the graphs in use."""

    def __init__(self) -> None:
        # By id: a plugin that is a dataclass cannot be hashed. The graphs keep it alive.
        self._uses: Counter[int] = Counter()

    def enter(self, graph: PluginGraph) -> None:
        """Count ``graph`` as in use."""
        self._uses.update(id(each.plugin) for each in graph.instances.values())

    def leave(self, graph: PluginGraph) -> None:
        """Close the plugins that no other graph in use contains; call once per :meth:`enter`."""
        over = []
        for instance in graph.instances.values():
            key = id(instance.plugin)
            self._uses[key] -= 1
            if self._uses[key] == 0:
                del self._uses[key]
                over.append(instance.plugin)
        close_all(over)
