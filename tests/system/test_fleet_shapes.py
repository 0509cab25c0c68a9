"""16 emulated GPUs get other MP degrees while agents run on them: no step is lost, and half of them serve."""

import asyncio
import json
from typing import Any

import pytest

pytestmark = pytest.mark.system

MODEL = "loom-8b"
AGENTS = 32
TOTAL = 16
FLOOR = 0.5


class Agent:
    """Asks step after step until it is told that the fleet has its new shape, then a few more."""

    def __init__(self, gateway: Any, number: int) -> None:
        self._http = gateway.http
        self.number = number
        self.workers: list[str] = []

    async def run(self, until: asyncio.Event, more: int) -> None:
        talk: list[Any] = [{"role": "user", "content": f"Task {self.number}."}]
        while more:
            more -= until.is_set()
            answer = await self._http.post(
                f"/t/agent-{self.number}/v1/chat/completions",
                json={"model": MODEL, "messages": talk, "max_tokens": 20 + self.number},
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-heddle-step"] == str(len(self.workers))
            self.workers.append(answer.headers["x-heddle-worker"])
            talk = [talk[0], answer.json()["choices"][0]["message"], {"role": "user", "content": "Go on."}]


async def serving(gateway: Any) -> int:
    """GPUs whose engines take steps now."""
    return sum(one["degree"] for one in (await gateway.get("/workers"))["items"] if one["state"] == "active")


async def watch(gateway: Any, seen: list[int], until: asyncio.Event) -> None:
    while not until.is_set():
        seen.append(await serving(gateway))
        await asyncio.sleep(0.02)


async def fleet(parts: Any, *arguments: str) -> tuple[int, str]:
    """Exit code and output of `heddle fleet`."""
    part = await parts.run("fleet", *arguments)
    output, _ = await part.process.communicate()
    assert part.process.returncode is not None
    return part.process.returncode, output.decode() + part.log.read_text()


async def hosts_of(parts: Any, gateway: Any, *options: str) -> list[str]:
    urls = []
    for name in ("a", "b"):
        host = await parts.run(
            *("host", "--emulated", "--gpus", str(TOTAL // 2), "--degrees", ",".join(["1"] * (TOTAL // 2))),
            *("--gateway", gateway.url, "--name", name, "--port", "0", "--model", MODEL, "--speed", "20"),
            *options,
        )
        urls += ["--host", json.loads(await host.line("ready"))["host"]]
    return urls


async def test_sixteen_ones_become_8_4_2_1_1_under_a_rollout(parts: Any, until: Any) -> None:
    gateway = await parts.gateway([])
    hosts = await hosts_of(parts, gateway)

    async def all_serve() -> bool:
        return await serving(gateway) == TOTAL

    await until(all_serve, f"{TOTAL} GPUs in service")
    agents = [Agent(gateway, number) for number in range(AGENTS)]
    reshaped, seen = asyncio.Event(), []
    async with asyncio.TaskGroup() as running:
        for agent in agents:
            running.create_task(agent.run(reshaped, more=3))
        watching = running.create_task(watch(gateway, seen, reshaped))
        wanted = ("--degrees", "8,4,2,1,1", "--floor", str(FLOOR))
        code, said = await fleet(parts, "plan", *hosts, *wanted, "--json")
        assert code == 0, said
        assert json.loads(said)["lowest"] == TOTAL * FLOOR
        code, said = await fleet(parts, "apply", *hosts, *wanted)
        assert code == 0, said
        reshaped.set()
        await watching
    assert min(seen) >= TOTAL * FLOOR
    assert await serving(gateway) == TOTAL
    workers = (await gateway.get("/workers"))["items"]
    assert sorted((one["degree"] for one in workers), reverse=True) == [8, 4, 2, 1, 1]
    # No step was lost or run twice, whatever was taken from under it.
    stats = await gateway.at_rest()
    taken = sum(len(agent.workers) for agent in agents)
    assert {how: number for how, number in stats["steps"]["ended"].items() if number} == {"done": taken}
    assert stats["steps"]["started"] == taken
    for agent in agents:
        assert len(await gateway.steps(f"agent-{agent.number}")) == len(agent.workers)
    await gateway.is_sound()
    code, said = await fleet(parts, "status", *hosts)
    assert code == 0
    assert said.count("ready") == 5


async def test_a_watch_reshapes_for_an_announced_rollout_once_and_says_so_first(
    parts: Any, until: Any
) -> None:
    gateway = await parts.gateway([])
    hosts = await hosts_of(parts, gateway)

    async def all_serve() -> bool:
        return await serving(gateway) == TOTAL

    await until(all_serve, f"{TOTAL} GPUs in service")
    watching = ("watch", *hosts, "--gateway", gateway.url, "--period", "0.2", "--floor", str(FLOOR), "--json")
    dry = await parts.run("fleet", *watching)
    assert json.loads(await dry.line("outcome"))["outcome"] == "nothing"
    # One trajectory for which a single GPU takes far longer than for all the others together.
    batch = {"lengths": [60_000] + [200] * 40}
    (await gateway.http.post("/admin/v1/rollouts", json=batch)).raise_for_status()
    said = json.loads(await dry.line('"would"'))
    assert said["worth"]["pays"]
    assert said["worth"]["now_s"] > said["worth"]["then_s"] + said["worth"]["restart_s"]
    await dry.stop()
    assert await serving(gateway) == TOTAL
    assert {one["degree"] for one in (await gateway.get("/workers"))["items"]} == {1}

    reshaped, seen = asyncio.Event(), []
    async with asyncio.TaskGroup() as running:
        running.create_task(watch(gateway, seen, reshaped))
        acting = await parts.run("fleet", *watching, "--apply")
        done = json.loads(await acting.line('"done"'))
        reshaped.set()
    await until(all_serve, f"{TOTAL} GPUs in service again")
    assert min(seen) >= TOTAL * FLOOR
    workers = (await gateway.get("/workers"))["items"]
    shape = sorted((one["degree"] for one in workers if one["state"] == "active"), reverse=True)
    assert shape == sorted(done["moves"]["after"], reverse=True)
    assert shape[0] > 1
    assert json.loads(await acting.line("outcome"))["outcome"] == "stays", "once is enough"
    await gateway.is_sound()


async def test_what_cannot_be_is_refused_and_nothing_is_done(parts: Any, until: Any) -> None:
    gateway = await parts.gateway([])
    hosts = await hosts_of(parts, gateway)

    async def all_serve() -> bool:
        return await serving(gateway) == TOTAL

    await until(all_serve, f"{TOTAL} GPUs in service")
    for degrees, floor, said in (
        ("16", "0", "neighbouring GPUs of one host"),
        ("8,8", "0.75", "a floor of 0.50 would do"),
        ("8,8,1", "0", "17 GPUs are wanted, the hosts have 16"),
        ("many", "0", "--degrees: 'many'"),
    ):
        code, output = await fleet(parts, "apply", *hosts, "--degrees", degrees, "--floor", floor)
        assert code == 2, output
        assert said in output
    code, output = await fleet(parts, "status", "--host", "http://127.0.0.1:1")
    assert code == 3
    assert "cannot be reached" in output
    assert await serving(gateway) == TOTAL
