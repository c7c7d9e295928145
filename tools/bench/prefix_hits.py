"""Cache hit ratio of prompts on the model servers, by the accuracy of the index.

``python -m tools.bench.prefix_hits``: conversations over four servers whose caches hold a part of
them; every request passes the scheduler, in one process and without a clock. The column "learned"
is the endpoint picker itself, the others have a fixed scale.
"""

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from epp.parsing.plugins import Usage
from epp.request_control.plugins import RESPONSE_USAGE, EndCause
from epp.scheduling import CycleState, Endpoint, Scheduler, SchedulerProfile, WeightedScorer
from epp.testing import make_endpoint, make_request
from epp_plugins.data_producers.approx_prefix_cache import ApproxPrefixCacheProducer, Params
from epp_plugins.data_producers.token import Params as TokenParams
from epp_plugins.data_producers.token import TokenProducer
from epp_plugins.data_producers.token_scale import TokenScale
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.pickers.max_score import Params as PickerParams
from epp_plugins.profile_handlers.single_profile import Params as HandlerParams
from epp_plugins.profile_handlers.single_profile import SingleProfileHandler
from epp_plugins.scorers.prefix_cache import Params as PrefixParams
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer
from epp_plugins.scorers.queue_depth import Params as QueueParams
from epp_plugins.scorers.queue_depth import QueueScorer

SERVERS = 4
IN_FLIGHT = 16
BLOCK_TOKENS = 16
CACHE_BLOCKS = 2000
"""KV blocks of each server: 32,000 tokens."""
CONVERSATIONS = 150
AT_A_TIME = 70
TURNS = 12
TURN_TOKENS = (60, 240)
SYSTEM_PROMPTS = 8
SYSTEM_TOKENS = 400
SEED = 3


@dataclass(slots=True, eq=False)
class Server:
    """A prefix cache of full blocks that forgets the least recently used, tails first."""

    endpoint: Endpoint
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def serve(self, keys: Sequence[int], tokens: int) -> int:
        """Compute a prompt; return how many of its blocks were there."""
        hits = 0
        for key in keys:
            if key not in self.blocks:
                break
            hits += 1
        for key in reversed(keys):
            self.blocks[key] = None
            self.blocks.move_to_end(key)
        while len(self.blocks) > CACHE_BLOCKS:
            self.blocks.popitem(last=False)
        page = self.endpoint.metrics
        self.endpoint.metrics = replace(
            page, prompt_tokens=page.prompt_tokens + tokens, prompts=page.prompts + 1
        )
        return hits


@dataclass(frozen=True, slots=True)
class HitRates:
    """Results of one run."""

    hit_rate: float
    """Share of the prompts' tokens that a server's cache held."""
    factor: float
    """Token scale that the first server has learned at the end."""


def simulate(
    bytes_per_token: int,
    *,
    with_counters: bool = True,
    with_usage: bool = False,
    seed: int = SEED,
    factor: float | None = None,
) -> HitRates:
    """Send all turns of all conversations, some at a time, each with what came before it.

    Args:
        bytes_per_token: Of the servers' tokenizer.
        with_counters: Whether the pages have the servers' counters of tokens and prompts.
        with_usage: Whether the responses report their tokens.
        seed: Of the conversations.
        factor: The scale of all servers to begin with; None for the default.
    """
    rng = random.Random(seed)
    producer = ApproxPrefixCacheProducer("approx-prefix-cache-producer", Params())
    scheduler = Scheduler(
        SingleProfileHandler("single", HandlerParams()),
        {
            "default": SchedulerProfile(
                name="default",
                scorers=[
                    WeightedScorer(PrefixCacheScorer("prefix", PrefixParams()), 3.0),
                    WeightedScorer(QueueScorer("queue", QueueParams()), 2.0),
                ],
                picker=MaxScorePicker("pick", PickerParams(), rng=rng),
            )
        },
        post_schedule=[producer],
    )
    tokens_of = TokenProducer("token", TokenParams())
    servers = {
        name: Server(
            make_endpoint(
                name, cache_block_size=BLOCK_TOKENS, cache_blocks=CACHE_BLOCKS, requested_at=0.0
            )
        )
        for name in (f"server-{n}" for n in range(SERVERS))
    }
    pool = [server.endpoint for server in servers.values()]
    if factor is not None:
        for each in pool:
            scale = producer._record._scales[each.name] = TokenScale()
            scale.factor = factor
    under_way: deque[Endpoint] = deque()
    found = asked = 0
    for prompt in _prompts(bytes_per_token, rng):
        request, state = make_request(prompt=prompt), CycleState()
        tokens_of.prepare(request, state)
        producer.prepare(request, state)
        producer.attach(request, pool, state)
        endpoint = scheduler.schedule(request, pool, state).endpoints[0].endpoint
        endpoint.load.start(0.0)
        under_way.append(endpoint)
        if len(under_way) > IN_FLIGHT:
            under_way.popleft().load.end(0.0)
        tokens = len(prompt) // bytes_per_token
        page = endpoint.metrics
        found += servers[endpoint.name].serve(_keys(prompt, bytes_per_token), tokens) * BLOCK_TOKENS
        asked += tokens
        if not with_counters:
            endpoint.metrics = page
        if with_usage:
            state.write(RESPONSE_USAGE, Usage(prompt_tokens=tokens))
        producer.response_complete(request, endpoint, EndCause.COMPLETED, state)
    return HitRates(found / asked, producer.scale_of(pool[0]))


def _keys(prompt: bytes, bytes_per_token: int) -> list[int]:
    size, parent, keys = BLOCK_TOKENS * bytes_per_token, 0, []
    for end in range(size, len(prompt) + 1, size):
        parent = hash((parent, prompt[end - size : end]))
        keys.append(parent)
    return keys


def _prompts(bytes_per_token: int, rng: random.Random) -> Iterator[bytes]:
    """Yield the turns, those of one conversation in order and mixed with those of others."""
    heads = [rng.randbytes(SYSTEM_TOKENS * bytes_per_token) for _ in range(SYSTEM_PROMPTS)]
    under_way: list[tuple[bytes, int]] = []
    begun = 0
    while begun < CONVERSATIONS or under_way:
        while begun < CONVERSATIONS and len(under_way) < AT_A_TIME:
            # A leading letter keeps random bytes from being read as a list of token ids.
            under_way.append((b"p" + heads[begun % SYSTEM_PROMPTS], 0))
            begun += 1
        n = rng.randrange(len(under_way))
        so_far, turns = under_way[n]
        so_far += rng.randbytes(rng.randint(*TURN_TOKENS) * bytes_per_token)
        yield so_far
        under_way[n] = so_far, turns + 1
        if turns + 1 == TURNS:
            del under_way[n]


def fixed(factor: float, bytes_per_token: int, seed: int) -> HitRates:
    """Simulate with a scale that nothing changes."""
    return simulate(bytes_per_token, with_counters=False, seed=seed, factor=factor)


def main() -> None:
    """Print the hit rates, each the mean of two traces."""
    factors = (1.0, 1.5, 2.0, 4.0)
    lines = ["bytes per token  " + "".join(f"x {f:<7}" for f in factors) + "learned  factor"]
    for size in (2, 4, 6):
        seeds = range(SEED, SEED + 2)
        rates = [sum(fixed(f, size, s).hit_rate for s in seeds) / 2 for f in factors]
        learned = [simulate(size, seed=s) for s in seeds]
        rate, factor = (sum(o.hit_rate for o in learned) / 2, learned[0].factor)
        lines.append(
            f"{size:<17}" + "".join(f"{r:<9.1%}" for r in rates) + f"{rate:<9.1%}{factor:.2f}"
        )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
