"""A fleet of fake vLLM servers in one process; imports no other package of epp.

`config` has the settings; `engine` simulates one server without I/O and with any clock; `http` and
`api` are its network interface; the modules `..._bodies` and `..._format(s)` implement the OpenAI
and Anthropic APIs; `stages` simulates the routing sidecar; `server` combines them; `fleet` runs
several servers. Use `serve` to run a fleet as a program, `Fleet` in tests.
"""

from epp.lab.fleet.config import EngineConfig, FleetConfig
from epp.lab.fleet.engine import Engine
from epp.lab.fleet.errors import ConfigError, FleetError, PortTakenError
from epp.lab.fleet.fleet import Fleet, serve
from epp.lab.fleet.generation import Counters
from epp.lab.fleet.sequence import FinishReason, GenerationRequest, Sequence
from epp.lab.fleet.server import FakeServer, Faults
from epp.lab.fleet.stages import Stage

__all__ = [
    "ConfigError",
    "Counters",
    "Engine",
    "EngineConfig",
    "FakeServer",
    "Faults",
    "FinishReason",
    "Fleet",
    "FleetConfig",
    "FleetError",
    "GenerationRequest",
    "PortTakenError",
    "Sequence",
    "Stage",
    "serve",
]
