"""``gpu-pack``, ``gpu-spread``: choose the GPU of a node.

``gpu-pack``
    The fullest GPU with room for the task; the score is its used fraction.
``gpu-spread``
    The emptiest GPU; the score is its free fraction.

They have no effect in the endpoint picker, only in cluster files (``epp session run``).

Example::

    sessions:               # of a cluster file
      plugins:
        gpu-pack: {}        # or gpu-spread
"""

from epp.flow_control.sessions import ExtensionPoints, Gpu, Node, SessionPlugin, Task


class GpuPack(SessionPlugin):
    """Prefers the fullest GPU with room for the task."""

    name = "gpu-pack"

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_gpu_order_fn(_used_part)


class GpuSpread(SessionPlugin):
    """Prefers the emptiest GPU."""

    name = "gpu-spread"

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_gpu_order_fn(lambda task, node, gpu: 1 - _used_part(task, node, gpu))


def _used_part(_task: Task, _node: Node, gpu: Gpu) -> float:
    return gpu.used / gpu.capacity
