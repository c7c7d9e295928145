"""The official clients in front of a whole gateway, and its counts of their requests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from epp.ext_proc import ExtProcSettings
from epp.lab.envoy import Mode
from tools.harness.gateway import NO_FAULTS, Gateway, running

ALIAS: Final = "chat"
"""What clients ask for; deploy/objects/chat.yaml has it served by SERVED."""
SERVED: Final = "tiny"
PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
"""A PNG of one pixel."""
WEATHER: Final = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer"},
        "model": {"const": SERVED},
        "usage": {"const": {"input_tokens": 99, "prompt_tokens": 99}},
    },
    "required": ["city", "unit", "days", "model", "usage"],
}
"""Arguments of the tool in these tests; two look like what is changed and read in responses."""

_OBJECTS = Path(__file__).parents[2] / "deploy" / "objects"


@dataclass(slots=True)
class Clients:
    """The clients of one gateway; each tries a request once."""

    gateway: Gateway
    mode: Mode
    openai: AsyncOpenAI
    """Checks every response against its own types."""
    lenient_openai: AsyncOpenAI
    """Takes what it gets, as they do by default: not even OpenAI's own responses to streamed
    completions (no reason to finish in most events) and embeddings (base64) are of its types."""
    anthropic: AsyncAnthropic
    """Checks every response against its own types."""

    @property
    def named(self) -> str:
        """The model as responses name it; in lean mode they do not pass through the EPP."""
        return SERVED if self.mode is Mode.LEAN else ALIAS

    async def counted(self) -> "Tokens":
        """Wait for the end of all requests; return the tokens counted so far."""
        await self.gateway.settled()
        families = self.gateway.app.metrics.registry.collect()
        samples = [sample for family in families for sample in family.samples]
        sums = {
            name: sum(sample.value for sample in samples if sample.name == f"llm_d_epp_{name}")
            for name in (
                "request_input_tokens_count",
                "request_input_tokens_sum",
                "request_output_tokens_sum",
            )
        }
        return Tokens(*map(int, sums.values()))

    async def assert_counted(self, before: "Tokens", *, prompt: int, output: int) -> None:
        """One request was counted since ``before``, or none where responses are not seen."""
        seen = self.mode is not Mode.LEAN
        after = await self.counted()
        assert after.requests - before.requests == (1 if seen else 0)
        assert after.prompt - before.prompt == (prompt if seen else 0)
        assert after.output - before.output == (output if seen else 0)


def assert_of_weather(arguments: dict[str, Any]) -> None:
    """They are what WEATHER asks for, and nothing on the way has touched them."""
    assert arguments.pop("city")
    usage = {"input_tokens": 99, "prompt_tokens": 99}
    assert arguments == {"unit": "celsius", "days": 0, "model": SERVED, "usage": usage}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token metrics over all models."""

    requests: int
    prompt: int
    output: int


@asynccontextmanager
async def clients_of(gateway: Gateway, mode: Mode) -> AsyncIterator[Clients]:
    """Make the clients as their users do."""
    once: Any = {"api_key": "none", "max_retries": 0, "timeout": 15.0}
    checked: Any = {**once, "_strict_response_validation": True}
    url = f"{gateway.url}/v1"
    async with (
        AsyncOpenAI(base_url=url, **checked) as openai,
        AsyncOpenAI(base_url=url, **once) as lenient,
        AsyncAnthropic(base_url=gateway.url, **checked) as anthropic,
    ):
        yield Clients(gateway, mode, openai, lenient, anthropic)


@asynccontextmanager
async def gateway_for_clients(
    mode: Mode, *, retry_after_seconds: int = 1
) -> AsyncIterator[Clients]:
    """A gateway that renames models and reads every response that it sees."""
    settings = ExtProcSettings(
        sample_usage=1.0, max_body_bytes=1 << 20, retry_after_seconds=retry_after_seconds
    )
    async with (
        running(mode, objects=(_OBJECTS,), serve={"ext_proc": settings}) as gateway,
        clients_of(gateway, mode) as clients,
    ):
        yield clients
        await gateway.settled()
        gateway.assert_untouched()
        assert await gateway.faults() == NO_FAULTS
