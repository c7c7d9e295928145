"""Request bodies and arrival times, a pure function of the plan and the random generator.

All random values of request N are a hash of (salt, N). So request N does not depend on earlier
requests and response times, and closed and open loops send identical requests.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice
from random import Random

import msgspec

from epp.lab.load.outgoing import OutgoingRequest
from epp.lab.load.plan import MIN_UNIQUE_CHARS, Api, LoadPlan
from epp.lab.load.request_headers import label_headers
from epp.lab.traffic.lengths import Lengths
from epp.lab.traffic.mix import Labels

_CORPUS_CHARS = 65536
_TEXT = (
    "the gateway asks which model server should answer this request while every cache keeps "
    "blocks of earlier prompts and a queue grows where tokens are slow because memory is full "
    "so pick one with room light load recent prefix and low latency then watch it again today"
)
_TWO_64 = 2.0**64
_NO_LABELS = Labels()


class Prompts:
    """The requests of a plan, by number."""

    def __init__(self, plan: LoadPlan, rng: Random) -> None:
        self._plan = plan
        self._salt = rng.getrandbits(64).to_bytes(8, "big")
        words = rng.choices(_TEXT.split(), k=_CORPUS_CHARS // 4)
        self._corpus = " ".join(words)[:_CORPUS_CHARS]
        self._prefixes = [
            self._text(f"{group} ", rng.randrange(_CORPUS_CHARS), plan.prefix_chars)
            for group in range(plan.prefixes)
        ]

    def prompt(self, index: int) -> str:
        """Return the unique prompt of request `index`, with the length from the plan."""
        place, group, _ = self._draws(index)
        plan = self._plan
        chars = self._length(index, plan.prompt_chars, b"prompt")
        own_chars = max(chars - plan.prefix_chars, MIN_UNIQUE_CHARS)
        own = self._text(f"{index} ", place % _CORPUS_CHARS, own_chars)
        return self._prefixes[group % plan.prefixes] + own if self._prefixes else own

    def body(self, index: int) -> bytes:
        """Return the JSON body of request `index`."""
        plan = self._plan
        prompt = self.prompt(index)
        max_tokens = self._length(index, plan.max_tokens, b"answer")
        model = self._labels(index).adapter or plan.model
        body: dict[str, object] = {"model": model, "max_tokens": max_tokens}
        if plan.ignore_eos:
            body["ignore_eos"] = True
        if plan.api is Api.CHAT:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if plan.stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(body)

    def outgoing(self, index: int) -> OutgoingRequest:
        """Return request `index`."""
        labels = self._labels(index)
        return OutgoingRequest(
            body=self.body(index),
            headers=label_headers(labels),
            leaves_early=self.leaves_early(index),
            tenant=labels.tenant,
            objective=labels.objective,
            adapter=labels.adapter,
        )

    def answered(self, index: int, text: str) -> None:
        """Do nothing: no prompt contains a response."""

    def leaves_early(self, index: int) -> bool:
        """Return whether the client aborts request `index` at the first byte of the body."""
        return self._draws(index)[2] / _TWO_64 < self._plan.abort_share

    def _labels(self, index: int) -> Labels:
        mix = self._plan.labels
        if mix is None:
            return _NO_LABELS
        return mix.draw(Random(b"%s%d" % (self._salt, index)), _NO_LABELS)  # noqa: S311

    def _length(self, index: int, lengths: int | Lengths, purpose: bytes) -> int:
        if isinstance(lengths, int):
            return lengths
        draw = hashlib.blake2b(
            index.to_bytes(8, "big"), digest_size=8, salt=self._salt, person=purpose
        )
        # 53 bits: more would round up to 1.0.
        return lengths.at((int.from_bytes(draw.digest(), "big") >> 11) / 2.0**53)

    def _draws(self, index: int) -> tuple[int, int, int]:
        digest = hashlib.blake2b(index.to_bytes(8, "big"), digest_size=24, salt=self._salt).digest()
        return (
            int.from_bytes(digest[:8], "big"),
            int.from_bytes(digest[8:16], "big"),
            int.from_bytes(digest[16:], "big"),
        )

    def _text(self, tag: str, place: int, chars: int) -> str:
        """Return `chars` characters: the tag, then the corpus from `place`, repeated if needed."""
        text = tag + self._corpus[place : place + chars]
        while len(text) < chars:
            text += self._corpus
        return text[:chars]


def arrival_offsets(plan: LoadPlan, rng: Random) -> Iterator[float]:
    """Yield the arrival times of the plan in seconds after the start, in ascending order.

    Constant arrivals begin at 0; Poisson arrivals have exponential gaps with mean ``1 / rate``.
    """
    process = plan.arrival_process
    if process is None:
        raise ValueError("a plan without a rate has no arrival times")
    for offset in islice(process.times(rng), plan.requests):
        if plan.duration_seconds is not None and offset >= plan.duration_seconds:
            return
        yield offset
