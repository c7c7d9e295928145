"""A fleet of fake vLLM servers in one process; imports nothing else of epp.

`config` says what there is, `engine` is the physics of one server (no I/O, any clock), `http` and
`api` are its network side, the modules named `..._bodies` and `..._answers` the OpenAI and
Anthropic APIs, `stages` plays the sidecar that asks other servers first, `server` joins them,
`fleet` runs N of them. To load an endpoint picker use `serve`, to test one `Fleet`.
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
