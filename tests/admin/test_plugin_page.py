"""Calls and failures on the page of plugins."""

from epp.scheduling import Scorer

from .site import serving


async def test_each_plugin_has_its_calls_time_and_failures() -> None:
    async with serving() as (app, client):
        metrics = app.pool.metrics
        labels = ("Scorer", "queue-scorer", "queue-scorer")
        for seconds in (0.00005, 0.00005, 0.5):
            metrics.plugin_duration.labels(*labels).observe(seconds)
        metrics.plugin_failures.labels(*labels).inc()
        metrics.plugins_disabled.labels("queue-scorer", "queue-scorer").set(1)
        metrics.plugin_duration.labels("Scorer", "former", "former").observe(1.0)
        lines = (await client.get("/debug/plugins")).json()["plugins"]
        first = lines[0]
        assert first["mean_seconds"] == (0.5 + 0.0001) / 3
        assert {key: first[key] for key in ("name", "calls", "failures", "disabled")} == {
            "name": "queue-scorer",
            "calls": 3,
            "failures": 1,
            "disabled": True,
        }
        assert first["is_above_p99"], "0.5 s is above the last bucket"
        names = {line["name"] for line in lines}
        assert "former" not in names, "it is not in use"
        scorers = [p.name for p in app.pool.graph.plugins.values() if isinstance(p, Scorer)]
        assert names.issuperset(scorers)
