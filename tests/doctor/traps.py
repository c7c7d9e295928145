"""A trap in a test's table, and the changes to a gateway that set one."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from .envoys import MANAGER, PICKER, Envoy, make_envoy, rows_of

MODES = f"{PICKER}.processing_mode"
COUNTERS = {"http.gateway.ext_proc.streams_started": 7, "cluster.pool.upstream_rq_total": 7}
EXT_PROC_PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
FILTER_CONFIG = "type.googleapis.com/envoy.config.route.v3.FilterConfig"


class Trap(NamedTuple):
    """A change to a sound gateway and what is said of it."""

    name: str
    set: Callable[[Envoy], object]
    check: str
    level: str
    where: str
    text: str
    known: Mapping[str, Any] = MappingProxyType({})


def traps(check: str, *rows: tuple[Any, ...]) -> list[Trap]:
    return [Trap(row[0], row[1], check, *row[2:]) for row in rows]


def all_of(*steps: Callable[[Envoy], object]) -> Callable[[Envoy], object]:
    return lambda envoy: [step(envoy) for step in steps]


def switch_off(envoy: Envoy, **extra: Any) -> None:
    """Another route to the pool on which ext_proc is off."""
    config = {"picker": {"@type": EXT_PROC_PER_ROUTE, "disabled": True}}
    other = {"name": "other", "match": {"prefix": "/other"}, "typed_per_filter_config": config}
    envoy.host["routes"].insert(0, {**other, "route": {**envoy.action, **extra}})


def fail_open(envoy: Envoy) -> None:
    envoy.picker["failure_mode_allow"] = True


def write_subset(envoy: Envoy) -> None:
    kind = "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config"
    rule = {
        "header": "x-subset",
        "on_header_present": {"metadata_namespace": "envoy.lb.subset_hint", "key": "k"},
    }
    config = {"@type": kind, "request_rules": [rule]}
    envoy.filters.insert(0, {"name": "subset", "typed_config": config})


def forward(*namespaces: str) -> Callable[[Envoy], object]:
    given = {"untyped": list(namespaces)}
    return lambda envoy: envoy.picker["metadata_options"].update(forwarding_namespaces=given)


def no_header_source(envoy: Envoy) -> None:
    del envoy.policy["override_host_sources"][0]


def receive_nothing(envoy: Envoy) -> None:
    del envoy.picker["metadata_options"]["receiving_namespaces"]


def wait(timeout: str | None) -> Callable[[Envoy], object]:
    if timeout is None:
        return lambda envoy: envoy.picker.pop("message_timeout")
    return lambda envoy: envoy.picker.update(message_timeout=timeout)


def modes(**given: str) -> Callable[[Envoy], object]:
    return lambda envoy: envoy.mode.update(given)


def limits(cluster: str, **given: int) -> Callable[[Envoy], object]:
    return lambda envoy: getattr(envoy, cluster).update(circuit_breakers={"thresholds": [given]})


def unlimited(cluster: str) -> Callable[[Envoy], object]:
    return lambda envoy: getattr(envoy, cluster).pop("circuit_breakers")


def counted(name: str, count: int = 3) -> dict[str, Any]:
    return {"counters": {**COUNTERS, name: count}}


def nothing(_: Envoy) -> None:
    pass


EARLY = f"{MANAGER}.early_header_mutation_extensions"
OPEN = f"{PICKER}.failure_mode_allow"
THRESHOLDS = "circuit_breakers.thresholds"

FULL_DUPLEX = modes(response_body_mode="FULL_DUPLEX_STREAMED")


def assert_found(trap: Trap) -> None:
    """It is found once where it is, with its level and its text."""
    envoy = make_envoy()
    trap.set(envoy)
    known = {"counters": COUNTERS, "version": (1, 40, 0), **trap.known}
    found = [
        (row.finding.level.value, row.finding.where, row.finding.text())
        for row in rows_of(envoy.report(**known), trap.check)
    ]
    matching = [each for each in found if each[:2] == (trap.level, trap.where)]
    assert len(matching) == 1, found
    assert trap.text in matching[0][2]


def shown(trap: Trap) -> str:
    """Its name in a test's."""
    return f"{trap.check}: {trap.name}"
