"""``models-data-extractor`` keeps the models that a server reports."""

import pytest

from epp.data_layer.plugins import SERVED_MODELS, Page, PageError
from epp.scheduling import AttributeKey, Endpoint
from epp_plugins.data_sources.models import MODELS, ModelRecord, ModelsDataExtractor, Params

RESPONSE = b"""{"object": "list", "data": [
  {"id": "llama", "object": "model", "created": 1700000000, "parent": null, "max_model_len": 4096},
  {"id": "llama-lora", "object": "model", "root": "/adapters/1", "parent": "llama"}
]}"""


def extract(body: bytes, name: str = "models-data-extractor") -> Endpoint:
    endpoint = Endpoint("ns/a", "10.0.0.1:8000")
    ModelsDataExtractor(name, Params()).extract(endpoint, Page(body, 1.5))
    return endpoint


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            RESPONSE,
            (ModelRecord("llama"), ModelRecord("llama-lora", "llama")),
            id="base and adapter",
        ),
        pytest.param(b'{"data": []}', (), id="none"),
    ],
)
def test_models_become_an_attribute(body: bytes, expected: tuple[ModelRecord, ...]) -> None:
    assert extract(body).attribute(MODELS) == expected
    assert MODELS.name == "/v1/models/models-data-extractor"


def test_the_names_are_passed_to_the_metrics() -> None:
    assert extract(RESPONSE).attribute(SERVED_MODELS) == frozenset({"llama", "llama-lora"})


def test_the_attribute_bears_the_instances_name() -> None:
    endpoint = extract(RESPONSE, name="mine")
    assert endpoint.attribute(MODELS) is None
    key = AttributeKey[tuple[ModelRecord, ...]]("/v1/models/mine")
    assert endpoint.attribute(key) is not None
    assert ModelsDataExtractor("mine", Params()).writes == (key, SERVED_MODELS)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"<html>", "not a list of models: JSON is malformed", id="not JSON"),
        pytest.param(b'{"error": "x"}', "missing required field `data`", id="an error"),
        pytest.param(b'{"data": [{"name": "x"}]}', "required field `id`", id="no id"),
        pytest.param(b'{"data": [{"id": 3}]}', "`$.data[0].id`", id="wrong type"),
    ],
)
def test_another_page_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(PageError) as caught:
        extract(body)
    assert message in str(caught.value)
