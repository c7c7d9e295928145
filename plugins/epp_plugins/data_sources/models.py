"""``models-data-extractor``: which models and adapters an endpoint serves.

Reads the OpenAI list of models, as ``models-data-source`` gets it from ``/v1/models``.

Writes: attribute ``/v1/models/NAME``, NAME being the extractor's own: a tuple of ``ModelRecord``;
        attribute ``served-models``: their names, which metrics never count as ``other``.
Example::

    plugins:
      - type: models-data-source
      - type: models-data-extractor
    dataLayer:
      sources:
        - pluginRef: models-data-source
          extractors: [{pluginRef: models-data-extractor}]
"""

from typing import Any, ClassVar, Final

import msgspec

from epp.data_layer.plugins import SERVED_MODELS, Extractor, Page, PageError, PageTooLargeError
from epp.scheduling import AttributeKey, Endpoint

MAX_BYTES: Final = 768 * 1024
"""A list cannot be read in parts; of this length it takes 20 ms at the most."""
MAX_MODELS: Final = 10_000


class ModelRecord(msgspec.Struct, frozen=True):
    """One model that a server serves."""

    id: str
    parent: str | None = None
    """The base model of an adapter."""


MODELS = AttributeKey[tuple[ModelRecord, ...]]("/v1/models/models-data-extractor")
"""What an extractor without a name of its own writes."""


class _Answer(msgspec.Struct):
    data: tuple[ModelRecord, ...]


_DECODER = msgspec.json.Decoder(_Answer)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``models-data-extractor``: none."""


class ModelsDataExtractor(Extractor):
    """Reads the records of a list of models."""

    type: ClassVar[str] = "models-data-extractor"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._key = AttributeKey[tuple[ModelRecord, ...]](f"/v1/models/{name}")
        # An instance's own, unlike other plugins' keys: it bears the instance's name.
        self.writes: tuple[AttributeKey[Any], ...] = (self._key, SERVED_MODELS)  # type: ignore[misc]

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        if len(page.body) > MAX_BYTES or page.body.count(b'"id"') > MAX_MODELS:
            raise PageTooLargeError(
                f"the list of models has more than {MAX_BYTES} bytes or {MAX_MODELS} models: ask"
                " another server, or leave this extractor out"
            )
        try:
            models = _DECODER.decode(page.body).data
        except msgspec.MsgspecError as error:
            raise PageError(f"the page is no list of models: {error}") from None
        endpoint.attributes[self._key] = models
        endpoint.attributes[SERVED_MODELS] = frozenset(model.id for model in models)
