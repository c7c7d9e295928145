"""What a simulation compares: built-in policies, oracles and configurations, by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from random import Random

from epp.building import InstalledPlugins
from epp.config import LoadedConfig, default_config, load_file, load_text
from epp.lab.envoy import Mode
from epp.lab.simulation.errors import SimulationError
from epp.lab.simulation.lower_bound import ideal_servers
from epp.lab.simulation.oracles import HoldingOracle
from epp.lab.simulation.picker import PickerRouter
from epp.lab.simulation.policies import POLICIES, PolicyRouter
from epp.lab.simulation.replicas import ONE_REPLICA, ReplicaPlan, ReplicatedRouter
from epp.lab.simulation.routing import Router
from epp.lab.simulation.servers import SimulatedServer, simulated_servers
from epp.lab.simulation.simulation import MakeServers
from epp.lab.simulation.virtual_loop import VirtualLoop

LOWER_BOUND = "lower-bound"
HOLDING_ORACLE = "oracle-holding"
CONFIGURATIONS = ("reference-weighted", "reference-affinity")
"""Configurations that are built in: the two defaults of the Go EPP."""
ORACLES = (HOLDING_ORACLE, LOWER_BOUND)
"""Contenders that know what no endpoint picker knows."""
NAMES = (*POLICIES, *CONFIGURATIONS, *ORACLES)
"""All built-in names."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A built-in policy or a configuration; it can be sent to another process."""

    name: str
    """Name in tables."""
    config: Path | None = None
    """The file of the configuration; None for a built-in name or a text."""
    text: str = ""
    """The configuration, if it is in no file."""
    directory: Path = Path()
    """What relative paths in `text` start from."""

    @classmethod
    def of_policy(cls, name: str) -> "Contender":
        """Return the contender with a built-in name.

        Raises:
            SimulationError: There is none.
        """
        if name not in NAMES:
            raise SimulationError(f"policy {name!r} is not one of {', '.join(NAMES)}")
        return cls(name)

    @classmethod
    def of_config(cls, path: Path) -> "Contender":
        """Return the configuration in a file; its name is that of the file."""
        return cls(path.name, path)

    @classmethod
    def of_text(cls, name: str, text: str, directory: Path = Path()) -> "Contender":
        """Return a configuration that is in no file."""
        return cls(name, text=text, directory=directory)

    def check(self) -> None:
        """Check the configuration, if it is one.

        Raises:
            ConfigError: It is invalid.
        """
        if self.uses_picker:
            self.load()

    @property
    def uses_picker(self) -> bool:
        """Whether it is a configuration of the endpoint picker."""
        return self.config is not None or bool(self.text) or self.name in CONFIGURATIONS

    @property
    def make_servers(self) -> MakeServers:
        """Creates its servers: modelled ones, or ideal ones for the lower bound."""
        return ideal_servers if self.name == LOWER_BOUND else simulated_servers

    def load(self) -> LoadedConfig:
        """Return its configuration.

        Raises:
            ConfigError: The file is invalid.
        """
        if self.config is not None:
            return load_file(self.config)
        if self.text:
            return load_text(self.text, self.name, self.directory)
        if self.name == "reference-weighted":
            return default_config()
        text = files(__package__).joinpath(f"{self.name}.yaml").read_text(encoding="utf-8")
        return load_text(text, f"{self.name}.yaml")

    def make_router(
        self,
        servers: Sequence[SimulatedServer],
        loop: VirtualLoop,
        *,
        seed: int,
        mode: Mode,
        scrape_interval_seconds: float,
        hedging_budget_percent: int = 0,
        objects: Sequence[Path] = (),
        replicas: ReplicaPlan = ONE_REPLICA,
    ) -> Router:
        """Create the router.

        Raises:
            ConfigError: The configuration is invalid.
        """
        if self.uses_picker:
            make_picker = partial(
                PickerRouter,
                self.load(),
                servers,
                loop,
                installed=_installed(),
                seed=seed,
                mode=mode,
                scrape_interval_seconds=scrape_interval_seconds,
                hedging_budget_percent=hedging_budget_percent,
                objects=objects,
            )
            if replicas.count == 1:
                return make_picker()
            return ReplicatedRouter(replicas, lambda replica: make_picker(replica=replica), loop)
        if self.name == HOLDING_ORACLE:
            return HoldingOracle(servers, loop)
        rng = Random(f"{seed}/{self.name}")  # noqa: S311 - reproducible, not secret
        make = POLICIES["round-robin" if self.name == LOWER_BOUND else self.name]
        return PolicyRouter(len(servers), make(len(servers), rng))


@cache
def _installed() -> InstalledPlugins:
    """Return the installed plugins, which all runs of a process share."""
    return InstalledPlugins.load()
