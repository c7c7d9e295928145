"""Remembers which streams we ended before the peer did: what it had already sent still arrives."""


class LateFrames:
    """The last N to 2 N such streams, in two generations, so that forgetting costs nothing.

    A stream that the peer itself ended, as Envoy ends all of its, is not among them. N is not below
    the number of streams that may be open at once: all of them may be ended in one go, by a drain.
    """

    __slots__ = ("_generation", "_older", "_younger")

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._younger: set[int] = set()
        self._older: set[int] = set()

    def __len__(self) -> int:
        return len(self._younger) + len(self._older)

    def __contains__(self, stream_id: int) -> bool:
        """Return whether frames on the stream are to be discarded."""
        return stream_id in self._younger or stream_id in self._older

    def expect(self, stream_id: int) -> None:
        """Let frames on the stream be discarded from now on."""
        self._younger.add(stream_id)
        if len(self._younger) >= self._generation:
            self._older = self._younger
            self._younger = set()

    def expect_no_more(self, stream_id: int) -> None:
        """Take note that the peer has ended the stream, too."""
        self._younger.discard(stream_id)
        self._older.discard(stream_id)
