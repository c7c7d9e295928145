"""How long plugins live: until the last graph that has them is out of use.

A reload drops plugins while requests that were scheduled with them are still open, and later
reloads may drop more. Each graph is in use from the moment it is chosen until its last request has
ended; a plugin is closed when no graph in use has it any more.
"""

from collections import Counter

from epp.config.graph import PluginGraph
from epp.config.instances import close_all


class PluginLifetimes:
    """Counts the graphs in use that have a plugin, and closes it after the last one."""

    def __init__(self) -> None:
        # By id: a plugin that is a dataclass cannot be hashed. The graphs keep it alive.
        self._uses: Counter[int] = Counter()

    def enter(self, graph: PluginGraph) -> None:
        """Take note that ``graph`` is in use."""
        self._uses.update(id(each.plugin) for each in graph.instances.values())

    def leave(self, graph: PluginGraph) -> None:
        """Close what only ``graph`` has; to be called once per :meth:`enter`."""
        over = []
        for instance in graph.instances.values():
            key = id(instance.plugin)
            self._uses[key] -= 1
            if self._uses[key] == 0:
                del self._uses[key]
                over.append(instance.plugin)
        close_all(over)
