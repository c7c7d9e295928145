"""The processes of the endpoint picker themselves: CPU, memory, event loop, connections."""

from typing import Final

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
_TRANSPORT: Final = "llm_d_epp_transport_"


def _per_process(expr: str, legend: str = _EACH) -> Query:
    return Query(expr, legend)


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
            description="How late a timer is that is due 50 times a second while requests are"
            " open.",
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
_CONNECTIONS: Final = Row(
    "Connections of Envoy and others",
    (
        Panel(
            title="ext_proc streams",
            description="One stream for each request in progress; by process.",
            queries=(_per_process(select(f"{_TRANSPORT}streams", PROCESS)),),
            unit="none",
        ),
        Panel(
            title="Streams opened",
            description="New ext_proc streams a second.",
            queries=(_per_process(rate(f"{_TRANSPORT}streams_total", PROCESS)),),
            unit="reqps",
        ),
        Panel(
            title="Streams that ended before their time",
            description="By reason. client_reset: Envoy gave the request up, mostly as its client"
            " left.",
            queries=(
                Query(
                    total(rate(f"{_TRANSPORT}streams_broken_off_total", PROCESS), "reason"),
                    "{{reason}}",
                ),
            ),
            unit="reqps",
        ),
        Panel(
            title="Refused or held back",
            description="By limit or rule; docs/transport.md has the setting for each.",
            queries=(
                Query(
                    total(rate(f"{_TRANSPORT}refused_total", PROCESS), "what"), "refused {{what}}"
                ),
                Query(
                    total(rate(f"{_TRANSPORT}held_back_total", PROCESS), "what"),
                    "held back {{what}}",
                ),
                Query(
                    total(rate(f"{_TRANSPORT}connections_ended_total", PROCESS), "reason"),
                    "connections ended {{reason}}",
                ),
            ),
            unit="cps",
        ),
        Panel(
            title="Connections by port",
            description="Open connections and the limit of each port, of the process with the"
            " most.",
            queries=(
                Query(highest(select("llm_d_epp_port_connections", PROCESS), "port"), "{{port}}"),
                Query(
                    highest(select("llm_d_epp_port_connections_limit", PROCESS), "port"),
                    "limit {{port}}",
                ),
            ),
            unit="none",
        ),
        Panel(
            title="Buffers",
            description="Answers that wait for Envoy to read, and messages that are not whole.",
            queries=(_per_process(select(f"{_TRANSPORT}buffered_bytes", PROCESS)),),
            unit="bytes",
        ),
        Panel(
            title="Header blocks from the cache",
            description="Part of the header blocks that need not be decoded. Low values cost CPU.",
            queries=(
                _per_process(
                    rate(f"{_TRANSPORT}header_cache_hits_total", PROCESS)
                    + " / ("
                    + rate(f"{_TRANSPORT}header_cache_hits_total", PROCESS)
                    + " + "
                    + rate(f"{_TRANSPORT}header_cache_misses_total", PROCESS)
                    + " > 0)"
                ),
            ),
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            title="Length of the metrics page",
            description="Beyond the limit, names of models and tenants count as other.",
            queries=(
                _per_process(select("llm_d_epp_metrics_page_bytes", PROCESS)),
                Query(highest(select("llm_d_epp_metrics_page_limit_bytes", PROCESS)), "limit"),
            ),
            unit="bytes",
        ),
        Panel(
            title="Names that count as other",
            description="How often names of models or tenants got no series of their own.",
            queries=(_per_process(rate("llm_d_epp_metrics_names_folded_total", PROCESS)),),
            unit="cps",
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    name="process",
    title="Endpoint picker / Process",
    description="Are the endpoint picker's own processes well?",
    variables=INSTANCES,
    rows=(_OVERVIEW, _RESOURCES, _LOOP, _CONNECTIONS),
)
