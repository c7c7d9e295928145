"""How the official clients report errors, and what remains after they give up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar, NamedTuple

import anthropic
import openai
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from epp.lab.envoy import Mode
from epp.request_control import Admitter, errors
from epp.request_control.errors import RequestError
from epp.scheduling import CycleState, Endpoint, GuardRails, LLMRequest, NullObserver
from tools.harness.gateway import until

from .harness import ALIAS, Clients, gateway_for_clients

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

RETRY_AFTER = 7
Client = AsyncOpenAI | AsyncAnthropic
StatusError = openai.APIStatusError | anthropic.APIStatusError


class Turnstile(Admitter):
    """Turns a request away with each of its errors, and lets the next ones pass."""

    type: ClassVar[str] = "turnstile"

    def __init__(self) -> None:
        self.name = "turnstile"
        self.errors: list[RequestError] = []

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        if self.errors:
            raise self.errors.pop(0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(mode: Mode) -> AsyncIterator[Clients]:
    async with gateway_for_clients(mode, retry_after_seconds=RETRY_AFTER) as made:
        yield made


@pytest.fixture(scope="module")
def turnstile(clients: Clients) -> Turnstile:
    """What every request of the module goes through."""
    made = Turnstile()
    pipeline = clients.gateway.app.pool.director.pipeline
    pipeline.admitters = GuardRails(observer=NullObserver()).guards("Admitter", Admitter, [made])
    return made


@pytest.fixture(params=["openai", "anthropic"])
def client(request: pytest.FixtureRequest, clients: Clients) -> Client:
    made: Client = getattr(clients, request.param)
    return made


async def ask(client: Client, **fields: Any) -> Any:
    """Ask for a few words."""
    messages = [{"role": "user", "content": "Hello"}]
    fields = {"model": ALIAS, "messages": messages, "max_tokens": 3, **fields}
    if isinstance(client, AsyncOpenAI):
        return await client.chat.completions.create(**fields)
    return await client.messages.create(**fields)


async def refused(client: Client, **fields: Any) -> StatusError:
    """Ask for a few words; return the error that comes instead."""
    try:
        await ask(client, **fields)
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return error
    pytest.fail("the request was answered")


class Expected(NamedTuple):
    """How an error reaches a client."""

    status: int
    openai: type[openai.APIStatusError]
    anthropic: type[anthropic.APIStatusError]
    kind: str
    """The `type` of the Anthropic client's error."""

    def assert_is(self, raised: StatusError, message: str) -> None:
        """It is typed, says what went wrong, and names the request."""
        assert raised.status_code == self.status
        assert message in raised.message
        assert raised.request_id
        body: Any = raised.body
        if isinstance(raised, openai.APIStatusError):
            assert type(raised) is self.openai
            assert body["message"] == message
            assert (raised.code, body["request_id"]) == (str(self.status), raised.request_id)
        else:
            assert type(raised) is self.anthropic
            assert (raised.type, raised.api_message) == (self.kind, message)
            assert body["request_id"] == raised.request_id


TURNED_AWAY = [
    pytest.param(
        errors.AdmissionDeniedError,
        Expected(429, openai.RateLimitError, anthropic.RateLimitError, "rate_limit_error"),
        id="no room",
    ),
    pytest.param(
        errors.NoCandidatesError,
        Expected(
            503, openai.InternalServerError, anthropic.ServiceUnavailableError, "overloaded_error"
        ),
        id="no endpoint",
    ),
    pytest.param(
        errors.InternalError,
        Expected(500, openai.InternalServerError, anthropic.InternalServerError, "api_error"),
        id="a fault",
    ),
]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("error", "expected"), TURNED_AWAY)
async def test_an_error_of_the_picker_is_the_clients_own(
    *,
    client: Client,
    turnstile: Turnstile,
    error: type[RequestError],
    expected: Expected,
    streamed: bool,
) -> None:
    turnstile.errors = [error("not today: the pool rests")]
    error_seen = await refused(client, stream=streamed)
    expected.assert_is(error_seen, "not today: the pool rests")


async def test_a_request_without_a_model_is_a_bad_one(client: Client) -> None:
    error = await refused(client, model="")
    expected = Expected(
        400, openai.BadRequestError, anthropic.BadRequestError, "invalid_request_error"
    )
    message = "model not found in request body: it must be a non-empty string"
    expected.assert_is(error, message)


async def test_the_error_for_a_request_that_is_too_large_names_the_limit(client: Client) -> None:
    error = await refused(client, messages=[{"role": "user", "content": "x" * (1 << 20)}])
    assert error.status_code == 413
    assert "1048576" in error.message
    if isinstance(error, anthropic.APIStatusError):
        body: Any = error.body
        assert isinstance(error, anthropic.RequestTooLargeError)
        assert body["error"]["type"] == "request_too_large"


async def test_an_error_of_the_model_server_passes_as_it_is(client: Client) -> None:
    error = await refused(client, model="nobody")
    assert isinstance(error, openai.NotFoundError | anthropic.NotFoundError)
    assert "The model `nobody` does not exist. Valid aliases: tiny." in error.message


@pytest.mark.parametrize(
    "error", [errors.AdmissionDeniedError, errors.ShuttingDownError], ids=["429", "503"]
)
async def test_a_client_waits_as_long_as_retry_after_says_and_asks_again(
    *,
    client: Client,
    turnstile: Turnstile,
    error: type[RequestError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("anyio.sleep", sleep)
    turnstile.errors = [error("not yet"), error("not yet")]
    response = await ask(client.with_options(max_retries=2))
    assert response.model
    # Their own guess would be at most a second.
    assert slept == [RETRY_AFTER, RETRY_AFTER]


async def test_a_client_that_runs_out_of_time_leaves_nothing(
    client: Client, clients: Clients
) -> None:
    servers = clients.gateway.fleet.servers
    for server in servers:
        server.faults.hang_generation = True
    try:
        with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
            await ask(client.with_options(timeout=0.3))
    finally:
        for server in servers:
            server.faults.hang_generation = False
    await clients.gateway.settled()
    clients.gateway.assert_untouched()
    assert (await ask(client)).model == clients.named


async def test_a_client_that_closes_its_stream_leaves_nothing(
    client: Client, clients: Clients
) -> None:
    gateway = clients.gateway
    aborted = sum(server.counters.aborted for server in gateway.fleet.servers)
    stream = await ask(client, stream=True, max_tokens=8000)
    first = await anext(aiter(stream))
    assert first.model_dump()
    assert gateway.in_flight() == 1
    await stream.close()
    await gateway.settled()
    gateway.assert_untouched()
    await until(
        lambda: sum(server.counters.aborted for server in gateway.fleet.servers) == aborted + 1
    )


async def test_a_client_that_is_cancelled_leaves_nothing(client: Client, clients: Clients) -> None:
    gateway = clients.gateway
    asking = asyncio.create_task(ask(client, max_tokens=8000))
    await until(lambda: gateway.in_flight() == 1)
    asking.cancel()
    await asyncio.wait([asking])
    await gateway.settled()
    gateway.assert_untouched()
