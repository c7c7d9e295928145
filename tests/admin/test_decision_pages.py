"""The pages of decisions: the filters of a query, and the response for a missing decision."""

from collections.abc import AsyncIterator, Mapping

import httpx
import pytest

from admin.recorded import Recorded
from epp.observability import Metrics, MetricsServer
from epp.request_control import EndCause

FAST, SLOW, OPEN = "fast-1", "slow-1", "open-1"


@pytest.fixture
def recorded() -> Recorded:
    """Three requests: one of 0.1 s, one of 3 s, one in flight for 1 s; the second moved to b."""
    made = Recorded()
    epp, clock = made.epp, made.clock
    fast, slow = epp.handle(request_id=FAST), epp.handle(request_id=SLOW)
    clock.now += 0.1
    fast.close(EndCause.COMPLETED)
    clock.now += 1.9
    epp.handle(request_id=OPEN)
    clock.now += 1.0
    slow.served_by("10.0.0.2:8000")
    slow.close(EndCause.COMPLETED)
    return made


@pytest.fixture
async def client(recorded: Recorded) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        MetricsServer(
            Metrics(), host="127.0.0.1", port=0, pages=recorded.explanations.pages
        ) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as http,
    ):
        yield http


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        pytest.param({}, [OPEN, SLOW, FAST], id="newest first"),
        pytest.param({"limit": "1"}, [OPEN], id="limit"),
        pytest.param({"slowest": "true"}, [SLOW, OPEN, FAST], id="slowest"),
        pytest.param({"slowest": "false", "since": "1"}, [OPEN, SLOW], id="since"),
        pytest.param({"since": "3"}, [], id="since the newest"),
        pytest.param({"endpoint": "default/a"}, [OPEN, SLOW, FAST], id="endpoint"),
        pytest.param({"endpoint": "b"}, [SLOW], id="endpoint that served, by its short name"),
        pytest.param({"endpoint": "10.0.0.2:8000"}, [SLOW], id="endpoint by address"),
        pytest.param({"endpoint": "nobody"}, [], id="unknown endpoint"),
    ],
)
async def test_lines_of_a_query(
    client: httpx.AsyncClient, query: Mapping[str, str], ids: list[str]
) -> None:
    response = await client.get("/debug/decisions", params=query)
    assert response.status_code == 200
    page = response.json()
    assert [each["request_id"] for each in page["decisions"]] == ids
    assert (page["newest"], page["kept"], page["sampled"]) == (3, 3, 1.0)


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        pytest.param({"limit": "0"}, "limit is '0'", id="no line"),
        pytest.param({"limit": "1001"}, "limit is '1001'", id="too many lines"),
        pytest.param({"limit": "ten"}, "limit is 'ten'", id="no number"),
        pytest.param({"since": "-1"}, "since is '-1'", id="negative"),
        pytest.param({"since": "9" * 30}, f"since is '{'9' * 30}'", id="huge"),
        pytest.param({"slowest": "yes"}, "slowest is 'yes'", id="no boolean"),
        pytest.param({"last": "5"}, "there is no parameter 'last'", id="unknown"),
    ],
)
async def test_a_bad_query_says_what_is_allowed(
    client: httpx.AsyncClient, query: Mapping[str, str], wrong: str
) -> None:
    response = await client.get("/debug/decisions", params=query)
    assert response.status_code == 400
    assert response.json()["error"] == (
        f"{wrong}; the parameters are: limit, a number from 1 to 1000; endpoint, a name or an"
        " address; slowest, true or false; since, a sequence number"
    )


@pytest.mark.parametrize("given", [FAST, "fa"])
async def test_a_decision_is_found_by_its_id_or_the_beginning_of_it(
    client: httpx.AsyncClient, given: str
) -> None:
    response = await client.get(f"/debug/decisions/{given}")
    assert response.status_code == 200
    assert response.json()["request_id"] == FAST


async def test_a_request_id_may_have_any_characters(
    recorded: Recorded, client: httpx.AsyncClient
) -> None:
    recorded.epp.handle(request_id="a/b?c d/ü")
    response = await client.get("/debug/decisions/a%2Fb%3Fc%20d/%C3%BC")
    assert (response.status_code, response.json()["request_id"]) == (200, "a/b?c d/ü")


async def test_the_newest_of_two_decisions_of_one_id_is_shown(
    recorded: Recorded, client: httpx.AsyncClient
) -> None:
    recorded.epp.handle(request_id=FAST)
    assert (await client.get(f"/debug/decisions/{FAST}")).json()["sequence"] == 4


async def test_a_missing_decision_says_how_to_keep_more(client: httpx.AsyncClient) -> None:
    response = await client.get("/debug/decisions/unknown")
    assert response.status_code == 404
    assert response.json()["error"] == (
        "no decision of the request 'unknown' is in memory, which has the newest 3. Raise"
        " --explain-decisions, --explain-bytes or --explain-rate to keep more"
    )


async def test_an_ambiguous_beginning_lists_the_ids(
    recorded: Recorded, client: httpx.AsyncClient
) -> None:
    recorded.epp.handle(request_id="fast-2")
    response = await client.get("/debug/decisions/fast")
    assert (response.status_code, response.json()["error"]) == (
        404,
        "2 request ids begin with 'fast': fast-1, fast-2; give more of it",
    )
