"""The plugin's parts that need no SGLang: what it remembers, how weights are named, how it talks."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from heddle_shim.plugin_client import PluginClient, PluginRefused, PluginSilent
from heddle_shim.sglang_plugin.control import Control
from heddle_shim.sglang_plugin.history import EndedRequest, History
from heddle_shim.sglang_plugin.weights import LiveWeights


def ended(length: int) -> EndedRequest:
    return EndedRequest(list(range(length)), [1], None, None)


def test_the_oldest_requests_are_forgotten_first() -> None:
    history = History(max_tokens=25)
    for name in ("a", "b", "c"):
        history.remember(name, ended(10))
    assert history.find("a") is None
    assert history.find("c") is not None
    history.remember("b", ended(3))  # the same again is counted once, and is the newest
    history.remember("d", ended(10))
    assert history.find("b") is not None
    assert history.find("c") is None


def same() -> str:
    return "same"


def test_weights_that_get_no_name_are_named_by_what_they_are() -> None:
    weights = LiveWeights()
    assert weights.name("default") == "default"
    weights.begin_update("default")
    assert weights.name("default") is None  # neither stored nor found
    weights.end_update("default", changed=True, mark=lambda: "abc")
    assert weights.name("default") == "default+abc"
    weights.begin_update("default")
    weights.end_update("default", changed=False, mark=same)
    assert weights.name("default") == "default+abc"
    weights.begin_update("default")
    weights.end_update("step-2", changed=True, mark=same)
    assert weights.name("step-2") == "step-2"
    weights.begin_update("step-2")
    weights.end_update("step-2", changed=True, mark=same)
    assert weights.name("step-2") == "step-2+same"


def test_weights_that_nobody_asked_for_before_their_first_update_are_told_apart_too() -> None:
    weights = LiveWeights()
    weights.begin_update("default")
    weights.end_update("default", changed=True, mark=same)
    assert weights.name("default") == "default+same"


def test_an_update_in_parts_is_one_and_its_weights_have_no_name_before_its_end() -> None:
    weights, marks = LiveWeights(), list[int]()
    weights.begin_update("v1")
    for version in ("v2", "v2"):
        weights.begin_update("v1")
        weights.end_update(version, changed=True, mark=same)
        assert weights.name(version) is None
    weights.end_update("v2", changed=True, mark=same)
    assert weights.name("v2") == "v2"
    # Parts that change nothing by themselves leave the name, one that does not is asked for once.
    weights.begin_update("v2")
    for changed in (False, True):
        weights.begin_update("v2")
        weights.end_update("v2", changed=changed, mark=same)

    def mark() -> str:
        marks.append(1)
        assert weights.name("v2") is None
        return "abc"

    weights.end_update("v2", changed=False, mark=mark)
    assert (weights.name("v2"), marks) == ("v2+abc", [1])


def test_who_wants_to_hear_of_an_update_does_when_it_is_over() -> None:
    weights, heard = LiveWeights(), list[str | None]()
    weights.on_update.append(lambda: heard.append(weights.name("v1")))
    weights.begin_update("v1")
    assert heard == []
    weights.end_update("v1", changed=True, mark=same)
    assert heard == ["v1+same"]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[PluginClient]:
    client = PluginClient(tmp_path)
    client.start()
    yield client
    await client.close()


async def scheduler(control: Control, answers: dict[str, dict[str, Any]]) -> None:
    """Reads between batches, as the agent does."""
    while True:
        for asker, request in control.requests():
            control.answer(asker, request, **answers[request["op"]])
        await asyncio.sleep(0.005)


async def test_shim_and_plugin_talk(client: PluginClient, tmp_path: Path) -> None:
    answers: dict[str, dict[str, Any]] = {
        "hello": {"features": ["warm"]},
        "history": {"tokens": array("I", [5, 6]).tobytes(), "extra_key": None, "cache_salt": "s"},
        "set_priority": {"applied": 1, "remembered": 2},
        "warm": {"error": "no room"},
    }
    control = Control(f"ipc://{tmp_path}/plugin.sock")
    running = asyncio.create_task(scheduler(control, answers))
    assert await client.features() == ("warm",)
    past = await client.history("rid")
    assert (list(past.tokens), past.extra_key, past.cache_salt) == ([5, 6], None, "s")
    assert await client.set_priority({"rid": 3}) == (1, 2)
    with pytest.raises(PluginRefused, match="warm: no room"):
        await client.warm([1, 2], None, None, 5.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    control.close()


async def test_an_engine_without_a_plugin_is_silent(client: PluginClient) -> None:
    with pytest.raises(PluginSilent, match="no answer from the engine's plugin"):
        await client.warm([1], None, None, 0.05)
