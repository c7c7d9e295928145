"""``example-data-producer``: counts the words of the prompt, for other plugins to read.

Writes: ``EXAMPLE_DATA_PRODUCER_WORDS`` to the cycle state.
Example::

    plugins:
      - type: file:example_data_producer.py:ExampleDataProducer
"""

from typing import Any, ClassVar

import msgspec

from epp.request_control.plugins import DataProducer
from epp.scheduling import CycleState, LLMRequest, StateKey

EXAMPLE_DATA_PRODUCER_WORDS = StateKey[int]("example-data-producer-words")
"""Words in the prompt. Readers create a key of the same name; keys are compared by name."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-data-producer``: none."""


class ExampleDataProducer(DataProducer):
    """Counts the words of the prompt once per request."""

    type: ClassVar[str] = "example-data-producer"
    writes: ClassVar[tuple[StateKey[Any], ...]] = (EXAMPLE_DATA_PRODUCER_WORDS,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        state.write(EXAMPLE_DATA_PRODUCER_WORDS, len(request.prompt.split()))
