"""The built-in session plugins, by name."""

from collections.abc import Callable, Mapping

from epp.flow_control.sessions import SessionPlugin
from epp_plugins.session_plugins.gpu_placement import GpuPack, GpuSpread
from epp_plugins.session_plugins.node_placement import NodeAffinity, NodeBinpack, NodeSpread
from epp_plugins.session_plugins.orders import LeaderFirst, Priority, StrictPriority
from epp_plugins.session_plugins.proportion import Proportion
from epp_plugins.session_plugins.spot_instance_manager import SpotInstanceManager

BUILDERS: Mapping[str, Callable[..., SessionPlugin]] = {
    GpuPack.name: GpuPack,
    GpuSpread.name: GpuSpread,
    LeaderFirst.name: LeaderFirst,
    NodeAffinity.name: NodeAffinity,
    NodeBinpack.name: NodeBinpack,
    NodeSpread.name: NodeSpread,
    Priority.name: Priority,
    Proportion.name: Proportion,
    SpotInstanceManager.name: SpotInstanceManager,
    StrictPriority.name: StrictPriority,
}
