"""``mm-embeddings-cache-scorer`` scores the share of a prompt's media that an endpoint holds."""

import msgspec
import pytest
from config.graphs import load

from epp.building import make_builder
from epp.config import ConfigError
from epp.data_layer.plugins import EndpointListener
from epp.request_control import Pipeline
from epp.request_control.producer_run import ProducerRun
from epp.scheduling import CycleState
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state, score_table
from epp_plugins.scorers.mm_embeddings_cache import MmEmbeddingsCacheScorer
from epp_plugins.state_keys import ENCODER_MATCHES, EncoderMatches, encoder_matches_of

A, B = make_endpoint("default/a"), make_endpoint("default/b")


@pytest.mark.parametrize(
    ("matches", "a", "b"),
    [
        pytest.param(EncoderMatches(4, {"default/a": 3}), 0.75, 0.0, id="a share"),  # 3/4
        pytest.param(EncoderMatches(4, {"default/a": 4, "default/b": 1}), 1.0, 0.25, id="all"),
        pytest.param(EncoderMatches(4, {"default/gone": 4}), 0.0, 0.0, id="another's"),
        pytest.param(EncoderMatches(4, {}), 0.0, 0.0, id="none held"),
        pytest.param(EncoderMatches(0, {}), 0.0, 0.0, id="no media"),
        pytest.param(None, 0.0, 0.0, id="nothing known"),
    ],
)
def test_score(matches: EncoderMatches | None, a: float, b: float) -> None:
    check(MmEmbeddingsCacheScorer)
    state = CycleState() if matches is None else make_state({ENCODER_MATCHES: matches})
    plugin = make_plugin(MmEmbeddingsCacheScorer)
    assert score_table(plugin, make_request(), [A, B], state) == {A.name: a, B.name: b}


def test_a_producer_of_another_name_is_believed() -> None:
    plugin = make_plugin(MmEmbeddingsCacheScorer, {"producerName": "mine"})
    state = make_state(
        {
            ENCODER_MATCHES: EncoderMatches(1, {A.name: 1}),
            encoder_matches_of("mine"): EncoderMatches(1, {B.name: 1}),
        }
    )
    assert score_table(plugin, make_request(), [A, B], state) == {A.name: 0.0, B.name: 1.0}


def test_alone_it_brings_its_producer_and_sends_a_picture_where_it_was() -> None:
    graph = make_builder(0).build(load("plugins: [{type: mm-embeddings-cache-scorer}]\n"))
    pipeline = Pipeline.of(graph.hooks, graph.scheduler, graph.guards)
    endpoints = [make_endpoint(f"default/{number}") for number in range(8)]
    for listener in graph.implementing(EndpointListener):
        for endpoint in endpoints:
            listener.endpoint_added(endpoint)
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    prompt = msgspec.json.encode([{"role": "user", "content": [part]}])
    chosen = set()
    for _ in range(20):
        request, state = make_request(prompt=prompt), CycleState()
        producer_run = ProducerRun(pipeline.producers, request, state)
        assert not producer_run.advance()
        producer_run.attach(endpoints)
        result = pipeline.scheduler.schedule(request, endpoints, state)
        pipeline.chosen(request, result, endpoints, state)
        chosen.add(result.endpoints[0].endpoint.name)
    assert len(chosen) == 1


def test_a_producer_that_is_not_there_is_reported() -> None:
    text = "plugins: [{type: mm-embeddings-cache-scorer, parameters: {producerName: gone}}]\n"
    with pytest.raises(ConfigError, match="which no plugin produces"):
        make_builder(0).build(load(text))
