"""``gpu-pack``, ``gpu-spread``: which GPU of the node.

``gpu-pack``
    The fullest that has room: the used part of it.
``gpu-spread``
    The emptiest: the free part of it.
"""

from epp.flow_control.sessions import Arguments, ExtensionPoints, Gpu, Node, SessionPlugin, Task


class GpuPack(SessionPlugin):
    """Prefers the fullest GPU with room for the task."""

    name = "gpu-pack"

    def __init__(self, arguments: Arguments) -> None:
        """Take no arguments."""

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_gpu_order_fn(_used_part)


class GpuSpread(SessionPlugin):
    """Prefers the emptiest GPU."""

    name = "gpu-spread"

    def __init__(self, arguments: Arguments) -> None:
        """Take no arguments."""

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_gpu_order_fn(lambda task, node, gpu: 1 - _used_part(task, node, gpu))


def _used_part(_task: Task, _node: Node, gpu: Gpu) -> float:
    return gpu.used / gpu.capacity
