"""The cells of a run: the measured numbers by which runs are compared."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tools.bench import (
    agreement,
    cycle,
    envoy_table,
    flow_control,
    instructions,
    latency,
    many_endpoints,
    matrix,
    open_requests,
    prefix_memory,
    recorded,
    setups,
    shares,
    start_up,
    through_envoy,
    tracing,
)
from tools.bench.gateways import Server
from tools.bench.in_process import Path
from tools.bench.result_file import Cell
from tools.bench.tables import named

Found = Iterator[tuple[str, Cell]]
_MIB = 1 << 20


def cells_of(results: Mapping[str, Any], reference_us: float) -> dict[str, Cell]:
    """Return the cells by name.

    Args:
        results: What the parts measured, by their keys.
        reference_us: CPU time of the fixed piece of Python; what has nothing else to be divided by
            is divided by it.
    """
    found: dict[str, Cell] = {}
    for key, cells in _CELLS.items():
        if key in results:
            found |= {f"{key}: {name}": cell for name, cell in cells(results[key], reference_us)}
    return found


def _through_envoy(measured: Sequence[through_envoy.Cell], _: float) -> Found:
    by_key = {(cell.case, cell.server): cell for cell in measured}
    for case in dict.fromkeys(cell.case for cell in measured):
        bare = by_key[case, Server.BARE]
        yield (
            f"{named(case)}: EPP / bare",
            Cell(values=envoy_table.rounds(by_key[case, Server.EPP], bare)),
        )
        if (case, Server.GRPC_AIO) in by_key:
            plain = by_key[case, Server.GRPC_AIO]
            yield f"{named(case)}: bare / grpc.aio", Cell(values=envoy_table.rounds(bare, plain))


def _matrix(measured: Iterable[matrix.Measured], reference_us: float) -> Found:
    for each in measured:
        for name, cell in _through_envoy(each.cells, reference_us):
            yield f"{each.endpoints} endpoints, {name}", cell


def _latency(measured: latency.Measured, reference_us: float) -> Found:
    alone = latency.bases(measured.latencies)
    for each in measured.latencies:
        base = alone[each.mode, each.per_second]
        if each is not base:
            name = f"{each.mode.value}, {each.per_second:g}/s, {each.gateway.value} / Envoy alone"
            for part in ("p50_ms", "p99_ms"):
                pairs = zip(getattr(each, part), getattr(base, part), strict=True)
                values = [mine / its for mine, its in pairs]
                yield f"{name}: {part.removesuffix('_ms')}", Cell(values=values)
    by_key = {(rate.mode, rate.gateway): rate.per_second for rate in measured.rates}
    for (mode, gateway), rate in by_key.items():
        if gateway is latency.Gateway.EPP and rate:
            for other in (latency.Gateway.ALONE, latency.Gateway.BARE):
                if by_key[mode, other]:
                    yield (
                        f"{mode.value}, highest rate, EPP / {other.value}",
                        Cell(values=[rate / by_key[mode, other]], higher_is_better=True),
                    )


def _paths(measured: Iterable[Path], _: float) -> Found:
    for path in measured:
        yield f"{named(path.case)}: EPP / bare", Cell(values=[path.epp_us / path.bare_us])


def _instructions(measured: Iterable[instructions.Instructions], _: float) -> Found:
    for each in measured:
        name, noise = named(each.case), instructions.noise_of(each.case)
        yield f"{name}: EPP / bare", Cell(values=[each.epp / each.bare], noise=noise)
        yield f"{name}: EPP, thousands", Cell(values=[each.epp], noise=noise)
        yield f"{name}: bare, thousands", Cell(values=[each.bare], noise=noise)


def _cycles(measured: Iterable[cycle.Cycle], reference_us: float) -> Found:
    for each in measured:
        name = f"{each.endpoints} endpoints, {each.prompt_characters} characters"
        yield f"{name}, new prompt / reference", Cell(values=[each.new_us / reference_us])
        yield f"{name}, known prompt / reference", Cell(values=[each.known_us / reference_us])


def _prefixes(measured: Iterable[cycle.Prefix], reference_us: float) -> Found:
    for each in measured:
        name = f"{each.prompt_characters} characters"
        yield f"{name}, new prompt / reference", Cell(values=[each.new_us / reference_us])
        yield f"{name}, entered / reference", Cell(values=[each.enter_new_us / reference_us])


def _recorded(measured: Iterable[recorded.Cost], _: float) -> Found:
    for each in measured:
        ratio = each.us["every decision"] / each.us["off"]
        yield f"{each.endpoints} endpoints: recorded / not", Cell(values=[ratio])


def _shares(measured: Iterable[shares.Shares], _: float) -> Found:
    for each in measured:
        for name, taken_us in each.taken_us.items():
            ratio = each.all_us / (each.all_us - taken_us)
            yield f"{named(each.case)}: with / without {name}", Cell(values=[ratio])


def _setups(measured: Sequence[setups.SetUp], reference_us: float) -> Found:
    default = next((each for each in measured if each.name == "default"), None)
    for each in measured:
        if default is None or each is default:
            yield f"{each.name}: new prompt / reference", Cell(values=[each.new_us / reference_us])
        else:
            yield f"{each.name} / default", Cell(values=[each.new_us / default.new_us])


def _tracing(measured: Iterable[tracing.Traced], _: float) -> Found:
    for each in measured:
        off, *others = each.loop_us
        for (state, _settings), us in zip(tracing.STATES[1:], others, strict=True):
            yield f"{named(each.case)}: {state} / off", Cell(values=[us / off])


def _prefix_memory(measured: Iterable[prefix_memory.Memory], _: float) -> Found:
    for each in measured:
        name = f"{each.case.prompts} prompts of {each.case.blocks}"
        yield f"{name}: resident, MiB", Cell(values=[each.resident_bytes / _MIB])


def _flow_control(measured: Iterable[flow_control.Row], reference_us: float) -> Found:
    for row in measured:
        for name, speed in (("alone", row.alone), ("director", row.whole)):
            cell = speed.cell
            load = f"{cell.limit} slots, {cell.bands} bands, {cell.flows} flows"
            load = f"{load}, {cell.callers} callers"
            rate = speed.per_second * reference_us / 1e6
            yield (
                f"{load}, {name}: dispatches per reference",
                Cell(values=[rate], higher_is_better=True),
            )


def _flow_control_costs(measured: flow_control.Costs, _: float) -> Found:
    yield "on / off", Cell(values=[measured.straight_us / measured.off_us])
    yield "queued / off", Cell(values=[measured.queued_us / measured.off_us])


def _start(measured: Mapping[str, Sequence[start_up.Start]], reference_us: float) -> Found:
    for name, starts in measured.items():
        values = [each.cpu_seconds * 1e6 / reference_us for each in starts]
        yield f"{name}: CPU / reference", Cell(values=values)


def _endpoints(measured: Sequence[many_endpoints.Cost], reference_us: float) -> Found:
    for each in measured:
        name = f"{each.endpoints}, {each.case}"
        yield f"{name}: cores / reference", Cell(values=[each.cores * 1e6 / reference_us])
        yield f"{name}: RSS, MiB", Cell(values=[each.rss_bytes / _MIB])


def _open_requests(measured: Sequence[open_requests.Cost], reference_us: float) -> Found:
    for each in measured:
        name = (
            f"{each.endpoints} endpoints, scrapes every {each.scrapes}, {each.open_requests} open"
        )
        yield f"{name}: CPU / reference", Cell(values=[each.cpu_ms * 1e3 / reference_us])
        yield f"{name}: wake-ups a second", Cell(values=[each.wakeups])


def _idle(share: float, reference_us: float) -> Found:
    yield "cores / reference", Cell(values=[share * 1e6 / reference_us])


def _agreement(measured: Iterable[agreement.Agreement], _: float) -> Found:
    for each in measured:
        if each.ratios:
            # Both directions are worse.
            values = [max(ratio, 1 / ratio) for ratio in each.ratios]
            yield (
                f"{each.scenario}: {each.policy}: TTFT p90, live to simulated",
                Cell(values=values),
            )


_CELLS: Mapping[str, Callable[[Any, float], Found]] = {
    "through_envoy": _through_envoy,
    "matrix": _matrix,
    "latency": _latency,
    "idle_share_50ms_scrapes": _idle,
    "paths": _paths,
    "sizes": _paths,
    "sizes_through_envoy": _through_envoy,
    "instructions": _instructions,
    "cycles": _cycles,
    "prefixes": _prefixes,
    "recorded": _recorded,
    "shares": _shares,
    "setups": _setups,
    "tracing": _tracing,
    "prefix_memory": _prefix_memory,
    "flow_control": _flow_control,
    "flow_control_costs": _flow_control_costs,
    "start": _start,
    "endpoints": _endpoints,
    "open_requests": _open_requests,
    "agreement": _agreement,
}
"""What makes cells of a part's results, by their key."""
