"""Pages of unlike weights are never taken for each other, whatever names the updates gave or did not give."""

import json
import os
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from .workers import Worker, assert_same_answer, client, engine_pid, in_store, wait_until

NewTokens = Callable[[int], list[int]]

LENGTH, NEW = 400, 16


@pytest.fixture(scope="module")
def other_model(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with other numbers: the halves of one matrix of values are exchanged."""
    made = tmp_path_factory.mktemp("weights") / "other"
    shutil.copytree(venv / "tiny", made)
    file = made / "model.safetensors"
    raw = bytearray(file.read_bytes())
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    [matrix] = [entry for name, entry in header.items() if name.endswith("layers.0.self_attn.v_proj.weight")]
    start, end = (8 + length + offset for offset in matrix["data_offsets"])
    middle = (start + end) // 2
    raw[start:end] = raw[middle:end] + raw[start:middle]
    file.write_bytes(raw)
    return made


def weights_of(worker: Worker) -> str:
    found: str = worker.handshake()["namespace"]["weight_version"]
    return found


def test_like_weights_without_names_are_alike_and_unlike_ones_are_not(
    worker_a: Worker, worker_b: Worker, other_model: Path, new_tokens: NewTokens, name: str
) -> None:
    """However many updates each worker has seen."""
    for worker in (worker_a, worker_b):
        worker.update_weights(name)
    worker_a.update_weights(None, other_model)
    worker_b.update_weights(None)
    assert weights_of(worker_a) != name != weights_of(worker_b)
    on_a = in_store(worker_a, worker_a.generate(new_tokens(LENGTH), NEW))
    refused = worker_a.move(f"{name}-1", worker_b.shim_url, tokens=on_a.tokens)
    assert (refused["state"], refused["fault"]) == ("failed", "mismatch"), refused

    worker_b.update_weights(None, other_model)
    assert weights_of(worker_a) == weights_of(worker_b)
    moved = worker_a.move(f"{name}-2", worker_b.shim_url, tokens=on_a.tokens)
    assert (moved["state"], moved["tokens_landed"]) == ("landed", on_a.full_pages), moved
    prompt = [*on_a.tokens, *new_tokens(40)]
    there = worker_b.generate(prompt, NEW)
    assert there.cached == on_a.full_pages
    assert_same_answer(there, worker_a.generate(prompt, NEW))


def test_pages_of_an_earlier_life_with_other_weights_are_not_found(
    worker_a: Worker, other_model: Path, new_tokens: NewTokens
) -> None:
    """The page store outlives the engine; its count of updates does not."""
    end_life(worker_a)
    assert weights_of(worker_a) == "default"
    worker_a.update_weights(None, other_model)
    wait_until(lambda: weights_of(worker_a) != "default", "the mark of the first life's weights")
    tokens = new_tokens(LENGTH)
    in_store(worker_a, worker_a.generate(tokens, NEW))

    end_life(worker_a)
    worker_a.update_weights(None)
    wait_until(lambda: weights_of(worker_a) != "default", "the mark of the second life's weights")
    again = worker_a.generate(tokens, NEW)
    assert again.cached == 0
    assert_same_answer(again, worker_a.generate(tokens, NEW, cache_salt="of nobody else"))


def end_life(worker: Worker) -> None:
    """Kills the engine and waits for the next, which the shim starts."""
    life = worker.report()["instance"]
    os.kill(engine_pid(worker), signal.SIGKILL)
    wait_until(
        lambda: worker.report()["instance"] != life and worker.report()["engine"] == "ready",
        "the engine's next life",
        420,
    )
    worker.ready()


def test_an_update_in_parts_is_one_update(worker_a: Worker, new_tokens: NewTokens, name: str) -> None:
    """Trainers send a model in many calls between a beginning and an end, all by the same name."""
    worker_a.rest()
    tokens = new_tokens(LENGTH)
    part = {"model_path": str(worker_a.venv / "tiny"), "weight_version": name}
    with client(worker_a.url) as http:
        assert http.post("/begin_weight_update", json={}).json()["success"]
        for _ in range(2):
            worker_a.rest()
            assert http.post("/update_weights_from_disk", json=part).json()["success"]
        halfway = worker_a.generate(tokens, NEW)
        assert worker_a.residency(halfway.tokens)["store"] == 0
        assert http.post("/end_weight_update", json={}).json()["success"]
    wait_until(lambda: weights_of(worker_a) == name, f"weights {name} in the handshake")
    worker_a.rest()
    whole = in_store(worker_a, worker_a.generate(tokens, NEW))
    assert_same_answer(whole, halfway)
