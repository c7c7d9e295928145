"""Workloads: which requests arrive when, from generators and traces."""

from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.lengths import Lengths, LogNormalLengths, UniformLengths, parse_lengths
from epp.lab.traffic.request import Segment, TrafficRequest

__all__ = [
    "Lengths",
    "LogNormalLengths",
    "Segment",
    "TrafficError",
    "TrafficRequest",
    "UniformLengths",
    "parse_lengths",
]
