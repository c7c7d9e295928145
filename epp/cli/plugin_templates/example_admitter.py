"""``example-admitter``: refuses requests whose body is too long, with 429.

Example::

    plugins:
      - type: file:example_admitter.py:ExampleAdmitter
        parameters: {maxBodyBytes: 1048576}
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.request_control.plugins import AdmissionDeniedError, Admitter
from epp.scheduling import CycleState, Endpoint, LLMRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``example-admitter``."""

    max_body_bytes: Annotated[int, msgspec.Meta(ge=0)] = 1048576
    """Maximum length of an admitted body."""


class ExampleAdmitter(Admitter):
    """Admits requests whose body has at most ``maxBodyBytes`` bytes."""

    type: ClassVar[str] = "example-admitter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._longest = params.max_body_bytes

    def admit(self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState) -> None:
        if request.body_bytes > self._longest:
            raise AdmissionDeniedError(
                f"the body has {request.body_bytes} bytes; {self._longest} are allowed"
            )
