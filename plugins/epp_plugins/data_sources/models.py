"""``models-data-extractor``: reads the models and adapters that an endpoint serves.

It reads the model list of the OpenAI API, which ``models-data-source`` gets from ``/v1/models``.

Writes: attribute ``/v1/models/NAME`` with the name of the extractor: a tuple of ``ModelRecord``;
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
"""Maximum length of a list, which cannot be read in parts and takes up to 20 ms."""
MAX_MODELS: Final = 10_000


class ModelRecord(msgspec.Struct, frozen=True):
    """One model that a server serves."""

    id: str
    parent: str | None = None
    """The base model of an adapter."""


MODELS = AttributeKey[tuple[ModelRecord, ...]]("/v1/models/models-data-extractor")
"""Attribute of an extractor with the default name."""


class _Response(msgspec.Struct):
    data: tuple[ModelRecord, ...]


_DECODER = msgspec.json.Decoder(_Response)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``models-data-extractor``: none."""


class ModelsDataExtractor(Extractor):
    """Reads a list of models."""

    type: ClassVar[str] = "models-data-extractor"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._key = AttributeKey[tuple[ModelRecord, ...]](f"/v1/models/{name}")
        # Set per instance, unlike the keys of most plugins: it contains the instance's name.
        self.writes: tuple[AttributeKey[Any], ...] = (self._key, SERVED_MODELS)  # type: ignore[misc]

    def extract(self, endpoint: Endpoint, page: Page) -> None:
        if len(page.body) > MAX_BYTES or page.body.count(b'"id"') > MAX_MODELS:
            raise PageTooLargeError(
                f"the list of models has more than {MAX_BYTES} bytes or {MAX_MODELS} models:"
                " scrape another server, or remove this extractor"
            )
        try:
            models = _DECODER.decode(page.body).data
        except msgspec.MsgspecError as error:
            raise PageError(f"the page is not a list of models: {error}") from None
        endpoint.attributes[self._key] = models
        endpoint.attributes[SERVED_MODELS] = frozenset(model.id for model in models)
