"""`/debug/plugins/state` over HTTP, through the metrics port."""

from dataclasses import dataclass
from http import HTTPStatus

import httpx
import pytest

from epp.lab.fleet import FleetConfig
from epp.observability import Metrics, MetricsServer
from tools.harness.gateway import running

pytestmark = pytest.mark.integration

PATH = "/debug/plugins/state"


@dataclass
class Verdict:
    status: HTTPStatus
    text: str = ""


class Doorkeeper:
    """Lets in who has the token."""

    async def allows(self, token: str, path: str, verb: str) -> Verdict:
        assert (path, verb) == (PATH, "get")
        return Verdict(HTTPStatus.OK if token == "s3cret" else HTTPStatus.UNAUTHORIZED)

    async def close(self) -> None:
        """Nothing to close."""


async def test_it_shows_what_the_plugins_in_use_remember() -> None:
    async with running(fleet=FleetConfig(endpoints=1)) as gateway:
        url = f"http://127.0.0.1:{gateway.ports.metrics}"
        response = await gateway.client.get(url + PATH)
        assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
        plugins = response.json()["plugins"]
        graph = gateway.app.pool.graph
        assert {name: each["type"] for name, each in plugins.items()} == {
            name: plugin.type for name, plugin in graph.plugins.items()
        }
        before = plugins["approx-prefix-cache-producer"]["state"]
        assert (await gateway.completion(prompt="Hello " * 500)).status_code == 200
        await gateway.settled()
        after = (await gateway.client.get(url + PATH)).json()["plugins"]
        assert after["approx-prefix-cache-producer"]["state"] != before
        assert "Hello" not in str(after)
        state = {"message": "plugin does not support state collection"}
        assert after["queue-scorer"] == {"name": "queue-scorer", "type": "queue-scorer", **state}


async def test_it_has_the_authentication_of_the_port() -> None:
    async with (
        running(fleet=FleetConfig(endpoints=1)) as gateway,
        MetricsServer(
            Metrics(),
            host="127.0.0.1",
            port=0,
            pages=gateway.app.pool.debug_pages,
            authorizer=Doorkeeper(),
        ) as server,
    ):
        url = f"http://127.0.0.1:{server.port}{PATH}"
        for token, status in (("other", 401), ("s3cret", 200)):
            headers = {"authorization": f"Bearer {token}"}
            response = await gateway.client.get(url, headers=headers)
            assert (response.status_code, "plugins" in response.json()) == (status, status == 200)
        assert (await gateway.client.get(url)).status_code == httpx.codes.UNAUTHORIZED
