"""Workloads: which requests arrive when, from generators and traces."""

from epp.lab.traffic.arrivals import RatePiece
from epp.lab.traffic.blocks import BlockCutter, block_keys
from epp.lab.traffic.document import load_traffic
from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.lengths import (
    EmpiricalLengths,
    Lengths,
    LogNormalLengths,
    NormalLengths,
    UniformLengths,
    length_at,
    parse_lengths,
)
from epp.lab.traffic.mix import LabelMix, Labels, Mix, RequestSlo
from epp.lab.traffic.request import Segment, TrafficRequest
from epp.lab.traffic.statistics import LengthStatistics, TrafficStatistics, describe
from epp.lab.traffic.text import BYTES_PER_TOKEN, prompt_text
from epp.lab.traffic.traces import TraceFormat
from epp.lab.traffic.workload import Conversation, Workload

__all__ = [
    "BYTES_PER_TOKEN",
    "BlockCutter",
    "Conversation",
    "EmpiricalLengths",
    "LabelMix",
    "Labels",
    "LengthStatistics",
    "Lengths",
    "LogNormalLengths",
    "Mix",
    "NormalLengths",
    "RatePiece",
    "RequestSlo",
    "Segment",
    "TraceFormat",
    "TrafficError",
    "TrafficRequest",
    "TrafficStatistics",
    "UniformLengths",
    "Workload",
    "block_keys",
    "describe",
    "length_at",
    "load_traffic",
    "parse_lengths",
    "prompt_text",
]
