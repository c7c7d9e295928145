"""The decoding sequences of one engine, which all generate one token in each step.

Because they advance together, a step only advances a counter, however many they are. Each sequence
derives its state from the counter; the group knows when each one ends and when it needs a block.
"""

from __future__ import annotations

from heapq import heappop, heappush

from epp.lab.fleet.sequence import DecodeClock, Sequence


class DecodeGroup:
    """The sequences that generate a token in each step."""

    def __init__(self, block_size: int) -> None:
        self.clock = DecodeClock()
        """Counts the steps, for all members."""
        self.size = 0
        """Number of members."""
        self.tokens = 0
        """Tokens of all members, those of their prompts and those generated."""
        self.listeners = 0
        """Members with a callback for each token."""
        self._block_size = block_size
        self._starts = [0] * block_size
        self._ends: list[tuple[int, int, Sequence]] = []
        self._joined = 0

    def add(self, sequence: Sequence) -> None:
        """Add a sequence that has just generated a token, and that will generate more."""
        clock, remaining = self.clock, sequence.output_tokens - sequence.generated
        self._joined += 1
        heappush(self._ends, (clock.steps + remaining, self._joined, sequence))
        self._count(sequence, 1)
        sequence.join(clock)

    def remove(self, sequence: Sequence) -> None:
        """Remove a member, which keeps its state."""
        sequence.leave()
        self._count(sequence, -1)

    def ending(self) -> list[Sequence]:
        """Return the members that have generated their last token, in order of their addition."""
        ends, steps = self._ends, self.clock.steps
        done: list[Sequence] = []
        while ends and ends[0][0] <= steps:
            entry = heappop(ends)
            if self._is_current(entry):
                done.append(entry[2])
        return done

    def steps_to_end(self) -> int:
        """Return the number of steps until a member generates its last token."""
        ends = self._ends
        while not self._is_current(ends[0]):
            heappop(ends)
        return ends[0][0] - self.clock.steps

    def needs_block(self, sequence: Sequence) -> bool:
        """Return whether the step now planned begins a block of a member."""
        return (sequence.total_tokens - 1) % self._block_size == 0

    def blocks_of_steps(self, steps: int) -> int:
        """Return the number of KV blocks that the members need for steps not yet planned."""
        starts, size = self._starts, self._block_size
        first = self.clock.planned % size
        if steps == 1:  # for each planned step
            return starts[first]
        rounds, rest = divmod(steps, size)
        end = first + rest
        blocks = sum(starts[first:end])
        if end > size:
            blocks += sum(starts[: end - size])
        return rounds * self.size + blocks

    def steps_in(self, blocks: int, most: int) -> int:
        """Return for how many steps not yet planned `blocks` KV blocks last, up to `most`."""
        if self.blocks_of_steps(most) <= blocks:
            return most
        rounds = min(most // self._block_size, blocks // self.size)
        steps = rounds * self._block_size
        blocks -= rounds * self.size
        while True:
            blocks -= self._starts[(self.clock.planned + steps) % self._block_size]
            if blocks < 0:
                return steps
            steps += 1

    def end_steps(self, steps: int, now: float) -> None:
        """Generate a token of each member in each of `steps` steps, the last of which ends now."""
        self.clock.steps += steps
        self.clock.ended_at = now
        self.tokens += steps * self.size

    def plan_steps(self, steps: int) -> None:
        """Compute the last token of each member in each of `steps` steps, whose blocks it has."""
        self.clock.planned += steps

    def _count(self, sequence: Sequence, sign: int) -> None:
        # The KV of token t is computed in the step after it is generated; it needs a block if
        # t - 1 tokens fill their blocks exactly.
        tokens = sequence.total_tokens
        self.size += sign
        self.tokens += sign * tokens
        self.listeners += sign * (sequence.on_token is not None)
        self._starts[(self.clock.steps - tokens + 1) % self._block_size] += sign

    def _is_current(self, entry: tuple[int, int, Sequence]) -> bool:
        """Return False for the entry of a sequence that has left, even if it was added again."""
        step, _, sequence = entry
        remaining = sequence.output_tokens - sequence.generated
        return sequence.clock is not None and step - self.clock.steps == remaining
