"""docs/first-fleet.md: its commands work, with fake vLLM servers and a real Envoy.

The steps of the page run in its order, on free ports; what it says about a server that dies is
checked at the end.
"""

import json
import re
import shutil
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest
from doc_commands import ROOT, blocks_of
from running_commands import Running, printed_by, started

from tools.harness.ports import free_ports

BLOCKS = blocks_of(ROOT / "docs" / "first-fleet.md")
SERVERS = {"vllm-0": "10.0.0.7", "vllm-1": "10.0.0.8"}
"""The addresses of the page, port 8000."""
NAMES = (*SERVERS, "gateway", "admin", "ext-proc", "health", "metrics")
OPTIONS = {
    "epp serve ": "--grpc-port {ext-proc} --grpc-health-port {health} --metrics-port {metrics}",
    "epp health": "--address 127.0.0.1:{health}",
    "epp explain ": "--admin http://127.0.0.1:{metrics}",
    "epp envoy-config ": "--epp-port {ext-proc} --port {gateway} --admin-port {admin}",
}
"""What a command gets besides, since the ports are other ones here."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),  # needs 12 s of CPU time
    pytest.mark.skipif(shutil.which("curl") is None, reason="the page's commands need curl"),
]


def block_with(start: str) -> str:
    """Return the only block that has a line with this beginning."""
    found = [text for _, text in BLOCKS if re.search(rf"^{re.escape(start)}", text, re.M)]
    assert len(found) == 1, start
    return found[0]


class Page:
    """Runs the page's commands in a folder, on free ports."""

    def __init__(self, folder: Path) -> None:
        self.ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
        self._folder = folder

    def here(self, text: str) -> str:
        """Return a block of the page with the addresses and ports of this machine."""
        for name, address in SERVERS.items():
            text = text.replace(f"{address}:8000", f"127.0.0.1:{self.ports[name]}")
            text = text.replace(f"{address}, port: 8000", f"127.0.0.1, port: {self.ports[name]}")
        text = re.sub(r"127\.0\.0\.1:8080(?=[ /])", f"127.0.0.1:{self.ports['gateway']}", text)
        text = text.replace("127.0.0.1:9090/", f"127.0.0.1:{self.ports['metrics']}/")
        return "\n".join(self._with_options(line) for line in text.splitlines())

    def _with_options(self, line: str) -> str:
        for start, options in OPTIONS.items():
            if line.startswith(start):
                command, mark, rest = line.partition(" > ")
                return f"{command} {options.format(**self.ports)}{mark}{rest}"
        return line

    async def run(self, commands: str) -> str:
        """Run commands that end, and return what they print."""
        return await printed_by(self.here(commands), self._folder)

    def started(self, command: str, says: str) -> AbstractAsyncContextManager[Running]:
        """Run a command that does not end; yield it once its output has the text."""
        return started(self.here(command), says, self._folder)

    def vllm(self, name: str) -> AbstractAsyncContextManager[Running]:
        """Run a fake server at the address of one of the page's."""
        command = f"epp fleet --endpoints 1 --first-port {self.ports[name]} --model qwen"
        return self.started(command, "fake vLLM server")


def test_every_block_of_commands_is_run_but_the_installation() -> None:
    commands = [text.partition(" ")[0] for kind, text in BLOCKS if kind == "sh"]
    assert commands == ["vllm", "curl", "python3", "epp", "epp", "epp", "curl", "epp"]


async def test_the_page_leads_to_a_response_and_a_dead_server_to_none_that_fails(
    tmp_path: Path,
) -> None:
    page = Page(tmp_path)
    (endpoints,) = (text for kind, text in BLOCKS if kind == "yaml")
    (tmp_path / "endpoints.yaml").write_text(page.here(endpoints))
    envoy_config, doctor, envoy = block_with("epp envoy-config").splitlines()
    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(page.vllm(name)) for name in SERVERS}
        looked = await page.run(block_with("curl -s http://10."))
        assert [line.partition("{")[0] for line in looked.splitlines()] == [
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "200",
        ]
        picker = await stack.enter_async_context(
            page.started(block_with("epp serve"), "endpoint picker started")
        )
        await picker.until("endpoint joined the pool", "default/vllm-1")
        healthy = await page.run(block_with("epp health"))
        assert healthy.startswith("SERVING\n")
        assert healthy.count("healthy") == 2

        await page.run(envoy_config)
        assert (await page.run(doctor)).splitlines()[-1] == "0 errors, 0 warnings"
        await stack.enter_async_context(page.started(envoy, "starting main dispatch loop"))
        assert "HTTP/1.1 200" in await page.run(block_with("curl -i"))
        routed = json.loads(await picker.until("request finished"))
        assert {"endpoint", "metrics_age_seconds", "waiting_requests"} <= routed.keys()
        loaded = await page.run(block_with("epp load"))
        assert re.search(r"succeeded +40\b", loaded)
        responses = re.findall(r'code_class="2xx".*\} (\S+)', loaded)
        assert len(responses) == 2
        assert sum(map(float, responses)) == 41

        await servers["vllm-1"].end()
        await picker.until("endpoint scrape failed", "default/vllm-1")
        await picker.until(
            "endpoint is ejected", "default/vllm-1", "2 failed scrapes in a row (connect)"
        )
        explained = await page.run("epp explain endpoint")
        (row,) = (line for line in explained.splitlines() if "default/vllm-1" in line)
        assert re.search(r"ejected .* 0% ", row)
        assert "HTTP/1.1 200" in await page.run(block_with("curl -i"))

        await servers["vllm-0"].end()
        await picker.until("endpoint is ejected", "default/vllm-0")
        refused = await page.run(block_with("curl -i"))
        assert "HTTP/1.1 503" in refused
        assert "no model server responds: all 2 endpoints are ejected" in refused

        await stack.enter_async_context(page.vllm("vllm-1"))
        await picker.until("endpoint is probing", "default/vllm-1")
        await picker.until("endpoint is healthy", "default/vllm-1")
