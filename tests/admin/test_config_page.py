"""The page of the configuration and its last reload, and the call that reloads it."""

import asyncio
from pathlib import Path

import httpx
import pytest

from epp.admin.config_page import shown_text
from epp.config import load_file

from .site import serving

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: max-score-picker}
- {type: single-profile-handler}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: max-score-picker}
"""


async def reloaded(client: httpx.AsyncClient, result: str) -> dict[str, object]:
    """Return the page once the last reload had this result."""
    async with asyncio.timeout(10):
        while True:
            page: dict[str, object] = (await client.get("/debug/config")).json()
            last = page["last_reload"]
            if isinstance(last, dict) and last["result"] == result:
                return page


async def test_the_page_follows_what_becomes_of_the_file(tmp_path: Path) -> None:
    file, token = tmp_path / "config.yaml", tmp_path / "token"
    file.write_text(CONFIG)
    token.write_text("s3cret")
    async with serving(
        config=await asyncio.to_thread(load_file, file),
        config_file=file,
        config_poll_seconds=0.02,
        enable_admin_writes=True,
        admin_token_file=token,
    ) as (_, client):
        page = (await client.get("/debug/config")).json()
        assert (page["source"], page["text"]) == (str(file), CONFIG)
        assert (page["last_reload"], page["diff"]) == (None, [])

        file.write_text(CONFIG.replace("weight: 2", "weight: 5"))
        after = await reloaded(client, "success")
        diff = after["diff"]
        assert isinstance(diff, list)
        assert "-  - {pluginRef: queue-scorer, weight: 2}" in diff
        assert "+  - {pluginRef: queue-scorer, weight: 5}" in diff

        bearer = {"authorization": "Bearer s3cret"}
        asked = await client.post("/debug/config/reload", headers=bearer)
        assert asked.json() == {"requested": True}
        await reloaded(client, "unchanged")

        file.write_text(CONFIG.replace("queue-scorer, weight", "no-such-scorer, weight"))
        refused = await reloaded(client, "failure")
        assert "no-such-scorer" in str(refused["last_reload"])
        assert refused["digest"] == after["digest"], "the one in use stays"

        for path, status in (("?a=b", 400), ("", 200)):
            response = await client.post(f"/debug/config/reload{path}", headers=bearer)
            assert response.status_code == status
        assert (await client.post("/debug/config/reload")).status_code == 401


async def test_without_a_file_there_is_nothing_to_reload(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    async with serving(enable_admin_writes=True, admin_token_file=token) as (_, client):
        bearer = {"authorization": "Bearer s3cret"}
        response = await client.post("/debug/config/reload", headers=bearer)
        assert response.status_code == 409
        assert "does not come from a file" in response.json()["error"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("password: abc", "password: (not shown)", id="plain"),
        pytest.param('"apiKey": "a, b"', '"apiKey": (not shown)', id="JSON"),
        pytest.param("{clientSecret: x, a: 1}", "{clientSecret: (not shown), a: 1}", id="flow"),
        pytest.param("  api-key: 'it''s'\nb: 2", "  api-key: (not shown)\nb: 2", id="quoted"),
        pytest.param("type: token-producer", "type: token-producer", id="tokens of a model"),
        pytest.param("keyFile: /etc/key", "keyFile: /etc/key", id="a file with a key"),
    ],
)
def test_values_that_may_be_secret_are_not_shown(text: str, shown: str) -> None:
    assert shown_text(text) == shown
