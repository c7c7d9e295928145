"""Rows of the fleet, and the cells that change between two seconds."""

from hypothesis import given
from hypothesis import strategies as st

from epp.admin.live.pool_reader import EndpointReading
from epp.admin.live.rows import Row, changed_cells, row
from epp.testing import make_endpoint

from .test_problems import SOUND


def test_a_row_has_what_is_known_of_an_endpoint() -> None:
    endpoint = make_endpoint(
        "ns/pod",
        address="10.0.0.9:8000",
        labels={"llm-d.ai/role": "decode"},
        waiting_requests=3,
        running_requests=8,
        kv_cache_usage=0.51234,
        active_adapters=["sql"],
        waiting_adapters=["chat"],
        max_adapters=4,
        requested_at=90.0,
    )
    reading = EndpointReading(
        endpoint, endpoint.metrics, 5, 4.0, "ejected", "no metrics for 1.00 s", 12.4, 0.0, ""
    )
    made = row(reading, None, 91.234)._asdict()
    assert made["role"] == "decode"
    assert (made["queue"], made["waiting"], made["running"], made["in_flight"]) == (4.0, 3, 8, 5)
    assert (made["kv_usage"], made["metrics_age"], made["returns_seconds"]) == (0.512, 1.2, 12)
    assert (made["adapters"], made["more_adapters"]) == (["chat", "sql"], 0)


def test_a_server_with_many_adapters_names_a_few() -> None:
    endpoint = make_endpoint(active_adapters=[f"a{n:02}" for n in range(20)])
    reading = EndpointReading(endpoint, endpoint.metrics, 0, 0.0, "healthy", "", None, 1.0, "")
    made = row(reading, None, 0.0)
    assert (len(made.adapters), made.more_adapters) == (8, 12)


rows = st.lists(
    st.builds(
        lambda name, queue, state: SOUND._replace(name=name, queue=queue, state=state),
        name=st.sampled_from("abc"),
        queue=st.integers(0, 3),
        state=st.sampled_from(["healthy", "ejected"]),
    ),
    max_size=4,
)


@given(before=rows, after=rows)
def test_the_changes_make_the_following_rows_of_the_former(
    before: list[Row], after: list[Row]
) -> None:
    changed = changed_cells(before, after)
    if [each[:2] for each in before] != [each[:2] for each in after]:
        assert changed is None, "other endpoints need a snapshot"
        return
    assert changed is not None
    held: list[list[object]] = [list(each) for each in before]
    for index, cells in changed.items():
        assert cells, "a row without a change is not sent"
        for column, value in cells.items():
            held[int(index)][int(column)] = value
    assert held == [list(each) for each in after]
