"""What session plugins raise is counted, and logged once for each kind."""

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from epp.flow_control.sessions.answers import Fault
from epp.observability import SessionFaults
from epp.observability.session_faults import MAX_PLACES

from .flow_harness import samples

FAILURES = "session_plugin_failures_total"


def test_every_failure_counts_where_it_happened() -> None:
    registry = CollectorRegistry()
    fault: Fault = SessionFaults(registry).failed
    with capture_logs():
        fault("spot", "predicate", ValueError("no"))
        fault("spot", "predicate", ValueError("no"))
        fault("spot", "on_session_open", KeyError("x"))
    assert samples(registry, FAILURES) == [
        ({"plugin": "spot", "extension_point": "predicate"}, 2),
        ({"plugin": "spot", "extension_point": "on_session_open"}, 1),
    ]


def test_the_first_of_a_kind_is_logged_with_its_traceback() -> None:
    faults = SessionFaults(CollectorRegistry())
    error = ValueError("no such label")
    with capture_logs() as logs:
        faults.failed("spot", "predicate", error)
        faults.failed("spot", "predicate", ValueError("again"))
        faults.failed("spot", "predicate", KeyError("x"))
        faults.failed("gpu", "predicate", ValueError("no"))
    assert [(each["plugin"], each["error"].partition(":")[0]) for each in logs] == [
        ("spot", "ValueError"),
        ("spot", "KeyError"),
        ("gpu", "ValueError"),
    ]
    assert logs[0] == {
        "event": "session plugin failed, the session goes on",
        "log_level": "error",
        "plugin": "spot",
        "extension_point": "predicate",
        "error": "ValueError: no such label",
        "exc_info": error,
    }


def test_places_beyond_the_cap_are_other() -> None:
    registry = CollectorRegistry()
    faults = SessionFaults(registry)
    with capture_logs() as logs:
        for n in range(MAX_PLACES + 5):
            faults.failed("amounts", f"amount-{n}", ValueError("no"))
        faults.failed("amounts", "amount-0", ValueError("no"))
    counts = {labels["extension_point"]: value for labels, value in samples(registry, FAILURES)}
    assert len(counts) == MAX_PLACES + 1
    assert (counts["other"], counts["amount-0"]) == (5, 2)
    assert len(logs) == MAX_PLACES + 1
