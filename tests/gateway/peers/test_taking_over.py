"""A new leader hears from the others what they hold, and only then decides what waits."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from heddle_contracts.steps import Outcome
from heddle_core import scan_body
from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.identity import TrajectoryBook
from heddle_gateway.live.directory import Directory
from heddle_gateway.live.driver import Driver
from heddle_gateway.live.policy import new_core
from heddle_gateway.peers.frames import Frame
from heddle_gateway.peers.hosting import Hosting
from heddle_gateway.peers.link import Link
from heddle_gateway.peers.messages import ToldIdentity, of_ended, of_identity, of_running
from heddle_gateway.peers.own_desk import OwnDesk, Running
from heddle_gateway.stored_answers import StoredAnswers

Until = Callable[..., Awaitable[None]]
SCAN = scan_body(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', "chat").to_bytes()
SLOTS = {"order": "fcfs", "placement": "sticky", "admission": "unlimited"}


@dataclass
class Facts:
    worker_id: int = 1
    generation: int = 1
    name: str = "worker"
    degree: int = 1
    slots: int = 4
    kv_tokens: int = 0
    has_priority: bool = True
    weight_version: str | None = None


class Workers:
    """One, as the leader's registry knows it."""

    def __init__(self) -> None:
        self.well: list[tuple[int, int]] = []

    def endpoints(self) -> tuple[Any, ...]:
        return ()

    def list(self) -> tuple[Any, ...]:
        return ()

    def registered(self) -> tuple[Any, ...]:
        return ()

    def worker(self, worker_id: int, generation: int) -> None:
        return None

    def living(self, url: str) -> tuple[int, int]:
        return 1, 1

    def note_success(self, worker_id: int, generation: int) -> None:
        self.well.append((worker_id, generation))

    def note_failure(self, worker_id: int, generation: int, kind: Any) -> None:
        return None


@dataclass
class Bench:
    """A leader, and a follower's end of a link to it. ``heard``: what the leader said, without greetings."""

    hosting: Hosting
    driver: Driver
    workers: Workers
    link: Link
    heard: list[Frame]

    def kinds(self, key: int) -> list[str]:
        return [frame.kind for frame in self.heard if frame.head.get("k") == key]


@pytest.fixture
async def bench(until: Until) -> AsyncIterator[Bench]:
    driver = Driver(
        new_core(SLOTS, journal=False), Directory(), max_trajectories=9, on_expire=lambda *_: None
    )
    driver.workers.up(Facts())
    book, workers = TrajectoryBook(), Workers()
    desk = OwnDesk(book=book, driver=driver, fleet=workers, stored=StoredAnswers(workers), sinks=())
    hosting = Hosting(
        desk=desk,
        book=book,
        driver=driver,
        fleet=workers,
        abort=lambda *_: None,
        describe=lambda *_: None,
        lives=nobody_knows,
        release="1",
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_server(hosting.protocol, "127.0.0.1")
    heard: list[Frame] = []
    link = Link(lambda _, frame: heard.append(frame), lambda _: None)
    await loop.create_connection(lambda: link, *server.sockets[0].getsockname())
    hosting.lead("leader", "secret")
    link.send("hello", id="follower", leader="leader", secret="secret", release="1")
    await until(lambda: [frame.kind for frame in heard] == ["welcome"], "the welcome")
    yield Bench(hosting, driver, workers, link, heard)
    assert driver.audit() == []
    link.close()
    hosting.stand_down()
    server.close()
    driver.close()


async def nobody_knows(process: str) -> None:
    """Whether a gateway lives: Redis is away."""


def again(running: Running | None) -> dict[str, Any]:
    """What a follower says of a step that it holds."""
    who = ToldIdentity("t", "header", None, None, None, 3, 0, False, False)
    return {"tenant": "", "who": of_identity(who), "running": of_running(running), "rid": None, "left": False}


def record(outcome: Outcome) -> list[Any]:
    now = time.time()
    return of_ended(
        EndedStep(
            "t", "", None, None, None, "header", "m", "chat", 3, 0, 1, 0, "worker", outcome, 200, None, (),
            4, 2, 0, False, None, now, now, now, now, None,
        )
    )  # fmt: skip


async def test_what_an_operator_sets_is_known_to_who_may_lead_next(bench: Bench, until: Until) -> None:
    assert bench.heard[0].head["policy"] == bench.driver.policy()
    assert bench.heard[0].head["paused"] is False
    bench.driver.on_orders = bench.hosting.orders_changed
    bench.driver.change_policy({"order": "longest_first"})
    bench.driver.pause_dispatch(True)
    bench.driver.pause_dispatch(True)
    await until(lambda: len(bench.heard) == 3, "both changes, and no third")
    changed, paused = (frame.head for frame in bench.heard[1:])
    assert (changed["policy"]["order"], changed["paused"]) == ("longest_first", False)
    assert (paused["policy"]["order"], paused["paused"]) == ("longest_first", True)


async def test_a_process_that_begins_anew_stays_under_its_orders(bench: Bench) -> None:
    bench.driver.change_policy({"order": "longest_first"})
    bench.driver.pause_dispatch(True)
    bench.driver.begin_anew()
    assert bench.driver.policy()["order"] == "longest_first"
    assert bench.driver.is_paused


async def test_a_client_that_leaves_while_its_step_waits_for_the_new_leader_leaves_nothing_behind(
    bench: Bench, until: Until
) -> None:
    bench.link.send("again", SCAN, k=7, **again(None))
    bench.link.send("left", k=7)
    bench.link.send("end", k=7, record=record(Outcome.ABORTED))
    bench.link.send("again", SCAN, k=8, **again(None))
    bench.link.send("synced")
    bench.link.send("again", SCAN, k=9, **again(Running("http://worker", 0, 1.0, streaming=True)))
    await until(lambda: bench.kinds(9) == ["held"], "the running step at its place")
    assert bench.kinds(7) == bench.kinds(8) == [], "decided before it was known what runs"
    bench.hosting.open()
    await until(lambda: "go" in bench.kinds(8), "the step that waits on to be decided")
    await until(lambda: "done" in bench.kinds(7), "the end to be taken")
    stats = bench.driver.stats()
    assert (stats["steps_live"], stats["steps_aborted_total"], stats["steps_arrived_total"]) == (2, 1, 3)


async def test_one_gateway_that_talks_nonsense_does_not_keep_the_others_waiting(
    bench: Bench, until: Until
) -> None:
    bench.link.send("arrive", b"no scan", k=1, tenant="", said=[None] * 7)
    bench.link.send("again", SCAN, k=9, **again(Running("http://worker", 0, 1.0, streaming=True)))
    await until(lambda: bench.kinds(9) == ["held"], "all to be heard")
    bench.hosting.open()
    await until(lambda: not bench.link.is_up, "the link to be closed")
    assert bench.hosting.stats()["followers"] == 0


async def test_a_whole_answer_elsewhere_is_a_sign_of_life_of_its_worker(bench: Bench, until: Until) -> None:
    """Answers that are no streams have no first byte to tell of."""
    bench.link.send("again", SCAN, k=9, **again(Running("http://worker", 0, 1.0, streaming=False)))
    bench.link.send("end", k=9, record=record(Outcome.DONE))
    await until(lambda: "done" in bench.kinds(9), "the end to be taken")
    assert bench.workers.well == [(1, 1)]


async def test_aborting_all_ends_the_steps_of_a_gateway_that_is_away(bench: Bench, until: Until) -> None:
    bench.link.send("again", SCAN, k=9, **again(Running("http://worker", 0, 1.0, streaming=False)))
    await until(lambda: bench.kinds(9) == ["held"], "the step to be counted")
    bench.link.close()
    await until(lambda: bench.hosting.stats()["followers"] == 0, "it to be away")
    assert bench.driver.live_steps == 1, "it may come back"
    bench.hosting.stop("another")
    assert bench.driver.live_steps == 1
    bench.hosting.stop(None)
    assert bench.driver.live_steps == 0
