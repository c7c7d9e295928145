"""``dp-rank-header-handler``: tells the model server which of its data-parallel ranks to use.

Use it for servers that have several ranks behind one address, such as vLLM with internal or hybrid
load balancing: the request goes to the rank whose cache holds most of its prompt. The header
``x-data-parallel-rank`` is set to the rank that a producer of prefix matches has found on the best
endpoint of the primary profile. If there is none, it is set to the value of the endpoint's label
``rankLabel``, an integer of up to nine digits. Without a rank the server chooses. A client's header
of this name is always removed, and so is ``x-llm-d-dp-winning-ranks``, with which releases of the
Go EPP forward ranks. With external load balancing each rank is a separate endpoint: leave this
plugin out.

The name of this type, the header and the rule are those of the Go EPP's public documentation;
``rankLabel`` is an extension. No producer of this release writes ranks yet: until one does, the
label decides.

Reads:  ``PREFIX_RANKS`` if a plugin writes it; ``endpoint.labels``.
Example::

    plugins:
      - type: dp-rank-header-handler
        parameters: {rankLabel: example.com/data-parallel-rank}
"""

from typing import Any, ClassVar, Final

import msgspec

from epp.request_control.plugins import PreRequest
from epp.scheduling import CycleState, LLMRequest, SchedulingResult, StateKey
from epp_plugins.request_headers import set_header
from epp_plugins.state_keys import PREFIX_RANKS

HEADER: Final = "x-data-parallel-rank"
INTERNAL_HEADER: Final = "x-llm-d-dp-winning-ranks"
_MAX_DIGITS: Final = 9


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``dp-rank-header-handler``."""

    rank_label: str = ""
    """Label with the rank that an endpoint stands for; "" for none."""


class DpRankHeaderHandler(PreRequest):
    """Names the data-parallel rank in a header of the request."""

    type: ClassVar[str] = "dp-rank-header-handler"
    keeps_result: ClassVar[bool] = True
    optional_reads: ClassVar[tuple[StateKey[Any], ...]] = (PREFIX_RANKS,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._label = params.rank_label

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        endpoint = result.endpoints[0].endpoint
        rank = (state.read(PREFIX_RANKS) or {}).get(endpoint.name)
        text = "" if rank is None or rank < 0 else str(rank)
        if not text and self._label:
            text = endpoint.labels.get(self._label, "")
        is_rank = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
        set_header(request, state, HEADER, text if is_rank else "")
        set_header(request, state, INTERNAL_HEADER, "")
