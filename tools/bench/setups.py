"""Cost of each well-known configuration, compared with the default one.

Each sample in deploy/config decides over 10 endpoints, with all its hooks: handle(), the head of
the reply, the end. The set-ups take turns, so that other work on the machine affects all alike.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from epp.building import make_builder
from epp.config import load_file
from epp.observability import Metrics, PluginWatch
from epp.request_control import Director, EndCause, Pipeline, RoutedRequest
from epp.scheduling import Endpoint
from epp.testing import make_endpoint
from tools import REPOSITORY
from tools.bench.in_process import scraped

SAMPLES = REPOSITORY / "deploy" / "config"
DEFAULT = "default"
ENDPOINTS = 10
PROMPT_CHARACTERS = 4_000
"""A thousand tokens: more than the samples let a decode server compute by itself."""
AIM = 2.0
"""Most that a set-up may cost, as a multiple of the default one."""
_REQUESTS = 150

_ROLES = ("prefill", "decode", "encode")


@dataclass(frozen=True, slots=True)
class SetUp:
    """One sample, µs per request: the least of all rounds."""

    name: str
    new_us: float
    """A prompt nobody has."""
    known_us: float
    """A prompt that was sent just before."""
    profiles: float
    """Profiles run per request with a new prompt."""


class _Runner:
    """A director with the plugins of one sample."""

    def __init__(self, path: Path) -> None:
        config = load_file(path)
        roles = {
            role for role in _ROLES if any(e.type == f"{role}-filter" for e in config.file.plugins)
        }
        metrics = Metrics()
        graph = make_builder(seed=0).build(config, observer=PluginWatch(metrics))
        self._endpoints = tuple(_endpoints(sorted(roles)))
        self._director = Director(
            pool=lambda: self._endpoints,
            find_address=lambda _: None,
            pipeline=Pipeline.of(graph.plugins.values(), graph.scheduler, graph.guards),
            metrics=metrics,
            clock=time.monotonic,
        )
        self._director._live._finished.enabled = False
        self._random = random.Random(0)
        self.profiles = 0

    def bodies(self) -> list[bytes]:
        """Return bodies whose prompts are new to everybody."""
        seed = self._random.random()
        return [
            msgspec.json.encode(
                {"model": "bench", "prompt": f"{seed}/{number}".ljust(PROMPT_CHARACTERS, "x")}
            )
            for number in range(_REQUESTS)
        ]

    def us(self, bodies: Sequence[bytes], headers: Mapping[str, str]) -> float:
        """Return the CPU time of a request, in microseconds."""
        self.profiles = 0
        began = time.process_time()
        for number, body in enumerate(bodies):
            exchange = self._director.handle(
                request_id=str(number), headers=headers, body=body, received_at=0.0
            )
            assert isinstance(exchange, RoutedRequest)
            exchange.response_started(200, headers)
            exchange.close(EndCause.COMPLETED)
            self.profiles += len(exchange.decision.result.profiles)
        return (time.process_time() - began) / len(bodies) * 1e6


def measure(rounds: int) -> list[SetUp]:
    """Measure every sample, the default first."""
    paths = sorted(SAMPLES.glob("*.yaml"), key=lambda path: (path.stem != DEFAULT, path.stem))
    runners = {path.stem: _Runner(path) for path in paths if not _is_out(path)}
    headers = {":path": "/v1/completions", "x-session-id": "s-1", "x-preferred-zone": "a"}
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            bodies = runner.bodies()
            new_us = runner.us(bodies, headers)
            profiles = runner.profiles / len(bodies)
            times[name].append((new_us, runner.us(bodies, headers), profiles))
    return [SetUp(name, *map(min, zip(*measured, strict=True))) for name, measured in times.items()]


def table(measured: Sequence[SetUp]) -> Group:
    """Return a table of the set-ups, and what is above the aim."""
    shown = Table(
        title=f"Set-ups in deploy/config, director and hooks, {ENDPOINTS} endpoints,"
        f" {PROMPT_CHARACTERS} characters, µs per request (multiple of {DEFAULT})",
        title_justify="left",
    )
    for column in ("set-up", "new prompt", "known prompt", "profiles run"):
        shown.add_column(column, justify="left" if column == "set-up" else "right")
    base = next(each for each in measured if each.name == DEFAULT)
    above = []
    for each in measured:
        new, known = each.new_us / base.new_us, each.known_us / base.known_us
        shown.add_row(
            *(each.name, f"{each.new_us:.1f} ({new:.2f})", f"{each.known_us:.1f} ({known:.2f})"),
            f"{each.profiles:.1f}",
        )
        if max(new, known) > AIM:
            above.append(f"{each.name} {max(new, known):.2f}")
    verdict = f"above {AIM:g}: {', '.join(above)}" if above else f"none above {AIM:g}"
    return Group(shown, Text(verdict, style="red" if above else "green"))


def _is_out(path: Path) -> bool:
    """Return whether a sample is no set-up of its own: other discovery, or a shadow."""
    return path.stem in {"dns", "file-discovery", "shadow"}


def _endpoints(roles: Sequence[str]) -> list[Endpoint]:
    made = []
    for number in range(ENDPOINTS):
        labels = {
            "llm-d.ai/context-length-range": ("0-1024", "1025-8192")[number % 2],
            "topology.kubernetes.io/zone": "ab"[number % 2],
            "kubernetes.io/hostname": f"node-{number % 3}",
        }
        if roles:
            labels["llm-d.ai/role"] = roles[number % len(roles)]
        endpoint = make_endpoint(
            f"default/server-{number}", address=f"10.0.0.{number + 1}:8000", labels=labels
        )
        made.append(scraped(endpoint, number, 0.0))
    return made
