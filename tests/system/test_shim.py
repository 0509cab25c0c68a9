"""`heddle shim` beside a server that runs already (here an emulated one), and gateways that come and go."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.system

Until = Callable[[Callable[[], Awaitable[bool]], str], Awaitable[None]]


async def start_shim(parts: Any, engine: Any, *options: str) -> tuple[Any, str]:
    part = await parts.run("shim", "--engine-url", engine.url, "--port", "0", *options)
    return part, json.loads(await part.line("ready"))["shim"]


async def worker_of(gateway: Any, engine: Any) -> Any:
    items = (await gateway.get("/workers"))["items"]
    return next((one for one in items if one["url"] == engine.url), None)


async def test_a_shim_registers_its_worker_reports_it_and_takes_it_out(parts: Any, until: Until) -> None:
    engine = await parts.engine()
    gateway = await parts.gateway([])
    # Beside a server that runs already nothing can be stored, so nothing is set aside for it.
    more = ("--name", "mine", "--store-bytes", "1000000G")
    part, shim_url = await start_shim(parts, engine, "--gateway", gateway.url, *more)

    async def serves() -> bool:
        worker = await worker_of(gateway, engine)
        return worker is not None and worker["state"] == "active" and worker["running"] is not None

    await until(serves, "the worker that the shim registered, with its load")
    assert (await worker_of(gateway, engine))["name"] == "mine"
    async with httpx.AsyncClient(base_url=shim_url, trust_env=False, timeout=60) as shim:
        said = (await shim.get("/shim/v1/handshake")).json()
        assert said["engine"]["model"] == "heddle-emulated-8b"
        assert "without the page store" in said["cannot_migrate"]
        assert (await shim.get("/shim/v1/health")).json()["engine"] == "ready"
    assert await part.stop() == 0
    assert await worker_of(gateway, engine) is None
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        assert (await http.get(f"{engine.url}/ping")).status_code == 200


async def test_a_shim_ends_when_the_steps_that_ran_at_its_sigterm_have_ended(
    parts: Any, until: Until
) -> None:
    engine = await parts.engine()
    gateway = await parts.gateway([])
    part, _ = await start_shim(parts, engine, "--gateway", gateway.url, "--drain-timeout", "60")

    async def is_in(state: str) -> bool:
        worker = await worker_of(gateway, engine)
        return worker is not None and worker["state"] == state

    await until(lambda: is_in("active"), "the worker that the shim registered")
    body = {"model": "m", "max_tokens": 300, "stream": True}
    body |= {"messages": [{"role": "user", "content": "Hi."}]}
    async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.aiter_lines()
        await anext(lines)
        part.process.terminate()
        await until(lambda: is_in("draining"), "the worker draining")
        told = [line async for line in lines]
        assert "data: [DONE]" in told, "the step was cut off"
        assert part.process.returncode is None, "the shim has left before its step ended"
    assert await part.stop() == 0
    assert "leaves gateway" not in part.log.read_text(), "it waited for the step, not for the time"
    assert await worker_of(gateway, engine) is None


async def test_a_gateway_that_was_started_again_gets_the_worker_again(parts: Any, until: Until) -> None:
    engine = await parts.engine()
    first = await parts.gateway([])
    await start_shim(parts, engine, "--gateway", first.url)

    async def serves() -> bool:
        try:
            worker = await worker_of(first, engine)
        except httpx.TransportError:
            return False  # not listening yet
        return worker is not None and worker["state"] == "active"

    await until(serves, "the worker at the first gateway")
    await first.part.kill()
    await parts.gateway([], port=int(first.url.rpartition(":")[2]))
    await until(serves, "the worker at the gateway that knew nothing")


async def test_an_engine_that_ends_is_dead_to_the_shim_and_comes_back_as_another(
    parts: Any, until: Until
) -> None:
    engine = await parts.engine()
    gateway = await parts.gateway([])
    _, shim_url = await start_shim(parts, engine, "--gateway", gateway.url)
    async with httpx.AsyncClient(base_url=shim_url, trust_env=False, timeout=60) as shim:

        async def is_in(state: str) -> bool:
            return bool((await shim.get("/shim/v1/health")).json()["engine"] == state)

        async def reports_another_life_than(life: str) -> bool:
            """What it last told of the engine; 503 before that, also of an engine that is ready."""
            report = await shim.get("/shim/v1/report")
            return report.is_success and bool(report.json()["instance"] != life)

        await until(lambda: is_in("ready"), "the engine ready")
        assert (await shim.get("/shim/v1/ready")).status_code == 200
        await until(lambda: reports_another_life_than(""), "the first report")
        life = (await shim.get("/shim/v1/report")).json()["instance"]
        await engine.kill()
        await until(lambda: is_in("dead"), "the engine dead")
        assert (await shim.get("/shim/v1/health")).status_code == 503
        assert (await shim.get("/shim/v1/ready")).status_code == 503
        await engine.start()
        await until(lambda: is_in("ready"), "the engine ready again")
        await until(lambda: reports_another_life_than(life), "a report of another life")


async def test_with_a_key_only_who_knows_it_may_act(parts: Any) -> None:
    engine = await parts.engine()
    _, shim_url = await start_shim(parts, engine, "--engine-key", "secret")
    async with httpx.AsyncClient(base_url=shim_url, trust_env=False, timeout=60) as shim:
        body = {"priorities": {"a": 1}}
        refused = await shim.post("/shim/v1/priorities", json=body)
        assert (refused.status_code, refused.json()["field"]) == (401, "authorization")
        known = {"authorization": "Bearer secret"}
        answer = await shim.post("/shim/v1/priorities", json=body, headers=known)
        assert answer.status_code == 409  # it may; this engine has no plugin
        assert (await shim.get("/shim/v1/handshake")).status_code == 200


async def test_one_of_both_ways_to_an_engine_is_needed(parts: Any) -> None:
    part = await parts.run("shim", "--engine-url", "http://127.0.0.1:1", "--launch", "--model-path /m")
    assert await part.process.wait() == 2
    assert "give either --engine-url or --launch" in part.log.read_text()
    part = await parts.run("shim", "--engine-url", "127.0.0.1:30000", "--no-kv")
    assert await part.process.wait() == 2
    assert "write it as http://HOST:PORT" in part.log.read_text()
    part = await parts.run("shim", "--launch", "--model-path /m --schedule-policy lpm", "--no-kv")
    assert await part.process.wait() == 1
    assert "--schedule-policy lpm" in part.log.read_text()
