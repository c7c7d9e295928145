"""Compares the cached tokens that a prefix index predicts with those that model servers report.

The index counts blocks of estimated tokens, a server real ones, so the prediction is the matched
share of the prompt's blocks times the prompt tokens of the response. All three counters grow by the
same responses: ``rate(observed) / rate(predicted)`` is the accuracy of the prediction, and
``rate(observed) / rate(prompt)`` the hit rate of the servers' caches. Neither is exact: the blocks
of a server are smaller, and it computes at least a prompt's last token itself.
"""

from epp.observability.plugins import PluginMetrics
from epp.parsing.plugins import Usage
from epp.scheduling import Plugin
from epp_plugins.state_keys import PrefixMatches


class PrefixPredictions:
    """Counts the predictions of one plugin."""

    def __init__(self, plugin: Plugin, metrics: PluginMetrics) -> None:
        self._prompt = metrics.counter(
            plugin,
            "prefix_indexer_prompt_tokens_total",
            "Prompt tokens of responses that report their usage.",
        )
        self._predicted = metrics.counter(
            plugin,
            "prefix_indexer_predicted_tokens_total",
            "Prompt tokens that the index predicted to be in the serving endpoint's prefix cache.",
        )
        self._observed = metrics.counter(
            plugin,
            "prefix_indexer_observed_tokens_total",
            "Prompt tokens that the model server reported as cached.",
        )

    def answered(self, matches: PrefixMatches, endpoint: str, usage: Usage) -> None:
        """Count a response.

        Args:
            matches: Matches of the index at the decision; not empty.
            endpoint: Name of the endpoint that served.
            usage: Usage that its response reports.
        """
        held, tokens = matches.blocks.get(endpoint, 0), usage.prompt_tokens
        self._prompt.add(tokens)
        self._predicted.add(tokens * held // matches.total_blocks)
        self._observed.add(min(usage.cached_tokens, tokens))
