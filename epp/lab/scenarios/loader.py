"""Reads scenario files; each error names the file, the field and its valid values."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from epp.inputs import why_unreadable
from epp.lab.fleet import EngineConfig, FleetConfigError
from epp.lab.fleet.faults import FaultPlan
from epp.lab.results import Slo
from epp.lab.scenarios.errors import ScenarioError
from epp.lab.scenarios.scenario import LabScenario
from epp.lab.traffic import TrafficError
from epp.lab.traffic.fields import DurationField, parse, seconds
from epp.lab.yaml_text import parse_yaml

_MAX_WORKERS = 10_000
_WORKERS = re.compile(r"([0-9]+)(?:-([0-9]+))?")


class FleetFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`fleet`: the servers."""

    workers: int = 8
    engine: dict[str, Any] = {}
    overrides: dict[int, dict[str, Any]] = {}
    labels: dict[str | int, dict[str, str]] = {}


class SloFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`slo`: the objectives of a request."""

    ttft: DurationField | None = None
    tpot: DurationField | None = None
    latency: DurationField | None = None


class ScenarioFields(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario file."""

    description: str
    source: str = ""
    fleet: FleetFields
    traffic: dict[str, Any]
    faults: list[Any] = []
    slo: SloFields = SloFields()
    warm_up: DurationField = 0.0
    network_delay: DurationField = 0.0
    timeout: DurationField = 600.0
    policies: list[str] = []


def load_scenario(path: Path) -> LabScenario:
    """Read a file.

    Raises:
        ScenarioError: The file cannot be read, is no YAML, or a field is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"cannot read the scenario {path}: {why_unreadable(error)}") from None
    try:
        document = parse_yaml(text)
    except ValueError as error:
        raise ScenarioError(f"{path}: no valid YAML: {error}") from None
    return scenario_of(document, name=path.stem, folder=path.parent, where=str(path))


def scenario_of(
    document: object, *, name: str, folder: Path = Path(), where: str = "scenario"
) -> LabScenario:
    """Return the scenario of a document.

    Args:
        document: The content of a file.
        name: Name of the scenario.
        folder: Base folder of relative paths.
        where: Name of the document, for errors.

    Raises:
        ScenarioError: A field is missing, unknown or invalid.
    """
    try:
        fields = parse(document, ScenarioFields, where)
        slo = fields.slo
        return LabScenario(
            name=name,
            description=fields.description,
            source=fields.source,
            engines=_engines(fields.fleet, f"{where}: fleet"),
            labels=_labels(fields.fleet, f"{where}: fleet.labels"),
            traffic=fields.traffic,
            folder=folder,
            faults=FaultPlan.from_list(fields.faults, f"{where}: faults"),
            slo=Slo(
                ttft_seconds=_limit(slo.ttft, f"{where}: slo.ttft"),
                tpot_seconds=_limit(slo.tpot, f"{where}: slo.tpot"),
                latency_seconds=_limit(slo.latency, f"{where}: slo.latency"),
            ),
            warm_up_seconds=seconds(fields.warm_up, f"{where}: warm_up"),
            network_delay_seconds=seconds(fields.network_delay, f"{where}: network_delay"),
            timeout_seconds=_positive(fields.timeout, f"{where}: timeout"),
            policies=tuple(fields.policies),
        )
    except (TrafficError, FleetConfigError) as error:
        raise ScenarioError(str(error)) from None


def _engines(fleet: FleetFields, where: str) -> list[EngineConfig]:
    if not 1 <= fleet.workers <= _MAX_WORKERS:
        raise ScenarioError(
            f"{where}.workers: {fleet.workers} is not a number from 1 to {_MAX_WORKERS}"
        )
    engines = [_engine(fleet.engine, f"{where}.engine")] * fleet.workers
    for index, changes in fleet.overrides.items():
        if not 0 <= index < fleet.workers:
            raise ScenarioError(
                f"{where}.overrides: there is no worker {index}: the fleet has {fleet.workers},"
                " counted from 0"
            )
        engines[index] = _engine(fleet.engine | changes, f"{where}.overrides.{index}")
    return engines


def _labels(fleet: FleetFields, where: str) -> list[dict[str, str]]:
    """Return the labels of each worker; [] if none has any."""
    labels: list[dict[str, str]] = [{} for _ in range(fleet.workers if fleet.labels else 0)]
    for which, given in fleet.labels.items():
        match = _WORKERS.fullmatch(str(which))
        first, last = (-1, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not 0 <= first <= last < fleet.workers:
            raise ScenarioError(
                f"{where}: {which!r} names no workers: give an index or a range such as 0-3, below"
                f" {fleet.workers}"
            )
        for index in range(first, last + 1):
            labels[index] |= given
    return labels


def _engine(document: Mapping[str, Any], where: str) -> EngineConfig:
    try:
        return EngineConfig.from_mapping(document)
    except FleetConfigError as error:
        raise ScenarioError(f"{where}: {error}") from None


def _limit(value: DurationField | None, where: str) -> float | None:
    return None if value is None else _positive(value, where)


def _positive(value: DurationField, where: str) -> float:
    number = seconds(value, where)
    if not number:
        raise ScenarioError(f"{where}: must be above 0")
    return number
