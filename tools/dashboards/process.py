"""The processes of the endpoint picker themselves: CPU, memory, event loop, connections."""

from typing import Final

from tools.dashboards.connections import CONNECTIONS
from tools.dashboards.model import Dashboard, Kind, Panel, Query, Row, Threshold, number
from tools.dashboards.queries import (
    INSTANCES,
    PROCESS,
    highest,
    increase,
    quantile,
    rate,
    select,
    total,
)

_EACH: Final = "{{instance}}"


def _per_process(expr: str) -> Query:
    return Query(expr, _EACH)


_OVERVIEW: Final = Row(
    "Overview",
    (
        number(
            "Processes",
            "Processes that Prometheus reaches.",
            f"sum({select('up', PROCESS)})",
            "none",
            thresholds=(Threshold(1, "green"),),
            low_is_bad=True,
        ),
        number(
            "CPU, highest",
            "Of one process. At one core it can do no more: add replicas, or use lean mode.",
            highest(rate("process_cpu_seconds_total", PROCESS)),
            "percentunit",
            thresholds=(Threshold(0.7, "orange"), Threshold(0.9)),
        ),
        number(
            "Memory, highest",
            "Resident memory of one process.",
            highest(select("process_resident_memory_bytes", PROCESS)),
            "bytes",
        ),
        number(
            "Longest pause",
            "Longest pause of an event loop in the last one to two minutes, without waits for a"
            " CPU."
            " All requests of the process wait meanwhile.",
            highest(select("llm_d_epp_event_loop_longest_pause_own_seconds", PROCESS)),
            "s",
            thresholds=(Threshold(0.1, "orange"), Threshold(0.5)),
        ),
        number(
            "Internal faults",
            "Exceptions that became a 500, in the chosen time: faults of the endpoint picker.",
            f"sum(increase({select('llm_d_epp_internal_faults_total', PROCESS)}[$__range]))",
            "none",
            thresholds=(Threshold(1),),
        ),
        number(
            "Descriptors in use",
            "Of the process with the fewest left. At 100 %, new connections are not accepted.",
            highest(
                select("llm_d_epp_descriptors_open", PROCESS)
                + " / "
                + select("llm_d_epp_descriptors_limit", PROCESS)
            ),
            "percentunit",
            thresholds=(Threshold(0.6, "orange"), Threshold(0.8)),
        ),
    ),
)
_RESOURCES: Final = Row(
    "Resources",
    (
        Panel(
            title="CPU",
            description="Cores in use by each process; one event loop uses one core at most.",
            queries=(_per_process(rate("process_cpu_seconds_total", PROCESS)),),
            unit="percentunit",
            thresholds=(Threshold(1),),
        ),
        Panel(
            title="Memory",
            description="Resident memory of each process.",
            queries=(_per_process(select("process_resident_memory_bytes", PROCESS)),),
            unit="bytes",
        ),
        Panel(
            title="Descriptors",
            description="Open descriptors and the limit (ulimit -n).",
            queries=(
                _per_process(select("llm_d_epp_descriptors_open", PROCESS)),
                Query(
                    "min(" + select("llm_d_epp_descriptors_limit", PROCESS) + ")", "lowest limit"
                ),
            ),
            unit="none",
        ),
        Panel(
            title="Versions",
            description="What was built, and since when each process runs.",
            queries=(
                Query(
                    "max by (instance, commit, build_ref) ("
                    + select("llm_d_epp_info", PROCESS)
                    + " * on (instance, job) group_left () "
                    + select("process_start_time_seconds", PROCESS)
                    + " * 1000)"
                ),
            ),
            unit="dateTimeAsIso",
            kind=Kind.TABLE,
        ),
        Panel(
            title="Garbage collection",
            description="Collections a second by generation; the third is the expensive one.",
            queries=(
                Query(
                    total(rate("python_gc_collections_total", PROCESS), "generation"),
                    "generation {{generation}}",
                ),
            ),
            unit="cps",
        ),
        Panel(
            title="Faults and lost log lines",
            description="Exceptions that became a 500, and log lines that were not written because"
            " nobody read them fast enough.",
            queries=(
                Query(
                    total(increase("llm_d_epp_internal_faults_total", PROCESS)), "internal faults"
                ),
                Query(
                    total(increase("llm_d_epp_log_lines_dropped_total", PROCESS), "reason"),
                    "log lines {{reason}}",
                ),
            ),
            unit="none",
        ),
    ),
)
_LOOP: Final = Row(
    "Event loop",
    (
        Panel(
            title="Lag, p99",
            description="How late timers are. 4 to 50 of them a second count: the more, the more"
            " CPU the process uses.",
            queries=(
                _per_process(
                    quantile(0.99, "llm_d_epp_event_loop_lag_seconds", PROCESS, by="instance")
                ),
            ),
            unit="s",
            thresholds=(Threshold(0.1, "orange"),),
        ),
        Panel(
            title="Longest pause, as clients notice it",
            description="Of the last one to two minutes. Much longer than the next: the machine is"
            " short of CPU.",
            queries=(
                _per_process(select("llm_d_epp_event_loop_longest_pause_wall_seconds", PROCESS)),
            ),
            unit="s",
        ),
        Panel(
            title="Longest pause, own",
            description="The same without waits for a CPU: something blocks the loop, such as a"
            " plugin.",
            queries=(
                _per_process(select("llm_d_epp_event_loop_longest_pause_own_seconds", PROCESS)),
            ),
            unit="s",
            thresholds=(Threshold(0.5),),
        ),
    ),
)
DASHBOARD: Final = Dashboard(
    name="process",
    title="Endpoint picker / Process",
    description="Are the endpoint picker's own processes well?",
    variables=INSTANCES,
    rows=(_OVERVIEW, _RESOURCES, _LOOP, CONNECTIONS),
)
