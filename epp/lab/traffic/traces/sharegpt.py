"""ShareGPT-like dialogues: a JSON array (or JSON lines) of conversations with their texts.

``{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}`` or
``{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}``.
Four bytes of text count as a token. Texts are replaced by others of the same length; equal texts
stay equal. The dialogues have no times.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.request import Segment, TrafficRequest
from epp.lab.traffic.text import BYTES_PER_TOKEN
from epp.lab.traffic.traces.rows import TraceLineError, json_lines, unreadable
from epp.lab.traffic.workload import Conversation, content_of

_ANSWERERS = frozenset({"gpt", "assistant", "chatgpt", "bard", "bing", "model"})


class ShareGptMessage(msgspec.Struct, frozen=True):
    """One message, by the field names of either form."""

    sender: str = msgspec.field(name="from", default="")
    role: str = ""
    value: str | None = None
    content: str | None = None

    @property
    def is_answer(self) -> bool:
        """Whether the model wrote it."""
        return (self.sender or self.role).lower() in _ANSWERERS

    @property
    def text(self) -> str:
        """The text."""
        return self.value or self.content or ""


class Dialogue(msgspec.Struct, frozen=True):
    """One conversation."""

    conversations: list[ShareGptMessage] = []
    messages: list[ShareGptMessage] = []


def read_rows(path: Path) -> Iterator[list[ShareGptMessage]]:
    """Yield the messages of each dialogue.

    Raises:
        TrafficError: The file cannot be read, or is not of this form.
    """
    if path.suffix == ".jsonl":
        for number, dialogue in json_lines(path, Dialogue):
            if not (dialogue.conversations or dialogue.messages):
                raise TraceLineError(path, number, "neither `conversations` nor `messages`")
            yield dialogue.conversations or dialogue.messages
        return
    try:
        dialogues = msgspec.json.decode(path.read_bytes(), type=list[Dialogue])
    except OSError as error:
        raise unreadable(path, error) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TrafficError(f"{path}: {error}") from None
    for dialogue in dialogues:
        yield dialogue.conversations or dialogue.messages


def conversations(
    rows: Iterable[list[ShareGptMessage]], *, name: str, think_seconds: float
) -> Iterator[Conversation]:
    """Yield a conversation for each dialogue with an answer; a request for each answer."""
    for number, messages in enumerate(rows):
        requests: Conversation = []
        history: tuple[Segment, ...] = ()
        for message in messages:
            tokens = max(1, -(-len(message.text.encode()) // BYTES_PER_TOKEN))
            if not message.is_answer:
                history = (*history, Segment(content_of(name, message.text), tokens))
            elif history:
                turn = len(requests)
                requests.append(
                    TrafficRequest(
                        index=turn,
                        follows=turn - 1 if turn else None,
                        think_seconds=think_seconds if turn else 0.0,
                        segments=history,
                        output_tokens=tokens,
                        session=f"{name}{number}",
                    )
                )
                history = (*history, Segment(turn, tokens, is_output=True))
        if requests:
            yield requests
