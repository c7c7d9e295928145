"""Listening sockets: binding, accepting, and dividing file descriptors among ports."""

from epp.sockets.acceptor import ACCEPTS_PER_TURN, Acceptor, PortStatistics
from epp.sockets.binding import BACKLOG, bind_shared, listen_on
from epp.sockets.descriptor_limit import (
    DescriptorDemand,
    DescriptorLimit,
    Shares,
    descriptor_limit,
    open_descriptors,
    raise_limit,
    share_out,
)

__all__ = [
    "ACCEPTS_PER_TURN",
    "BACKLOG",
    "Acceptor",
    "DescriptorDemand",
    "DescriptorLimit",
    "PortStatistics",
    "Shares",
    "bind_shared",
    "descriptor_limit",
    "listen_on",
    "open_descriptors",
    "raise_limit",
    "share_out",
]
