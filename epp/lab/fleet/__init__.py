"""A fleet of fake vLLM servers in one process; imports no other package of epp.

`config` and `engine_config` have the settings; `engine` simulates one server without I/O and with
any clock; `http` and `api` are its network interface; the modules `..._bodies` and `..._format(s)`
implement the OpenAI and Anthropic APIs; `stages` simulates the routing sidecar. `process` has the
state that a restart loses, `service` its routes, `server` the address and the connections; `fleet`
runs several servers. `faults` schedules faults, `injector` applies them to the servers.
`request_log` records each request, `self_load` measures the fleet's own process; `control` serves
both.
"""

from epp.lab.fleet.config import (
    EngineType,
    FleetConfig,
    KvEventFormat,
    KvEventsConfig,
)
from epp.lab.fleet.engine import Engine
from epp.lab.fleet.engine_config import EngineConfig
from epp.lab.fleet.errors import FleetConfigError, FleetError, PortTakenError
from epp.lab.fleet.faults import FAULT_KINDS, FaultPlan, FaultSchedule, ServerFaults
from epp.lab.fleet.fleet import Fleet
from epp.lab.fleet.generation import Counters
from epp.lab.fleet.presets import PRESETS, Preset
from epp.lab.fleet.ranks import EngineRanks
from epp.lab.fleet.request_log import RequestLog, ServedRequest
from epp.lab.fleet.sequence import FinishReason, GenerationRequest, Sequence
from epp.lab.fleet.server import FakeServer
from epp.lab.fleet.stages import WorkStage

__all__ = [
    "FAULT_KINDS",
    "PRESETS",
    "Counters",
    "Engine",
    "EngineConfig",
    "EngineRanks",
    "EngineType",
    "FakeServer",
    "FaultPlan",
    "FaultSchedule",
    "FinishReason",
    "Fleet",
    "FleetConfig",
    "FleetConfigError",
    "FleetError",
    "GenerationRequest",
    "KvEventFormat",
    "KvEventsConfig",
    "PortTakenError",
    "Preset",
    "RequestLog",
    "Sequence",
    "ServedRequest",
    "ServerFaults",
    "WorkStage",
]
