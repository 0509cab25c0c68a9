"""Gateways of one namespace in one process, on simulated time: the parts that decide, no HTTP and no engines.

Book, core, desks, hosting and reign are the gateway's own; between them are real sockets through relays that
a test may cut. Redis is a table (`Store`) that may be away for anybody. Agents do what serve_step does.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from heddle_contracts.steps import Outcome
from heddle_core import read_answer, scan_body
from heddle_gateway.accounting.ended_step import EndedStep
from heddle_gateway.fleet.events import WorkerEndpoint
from heddle_gateway.fleet.features import EngineKind, Features
from heddle_gateway.identity import RequestFacts, TrajectoryBook
from heddle_gateway.live.decisions import Dispatch
from heddle_gateway.live.directory import Directory
from heddle_gateway.live.driver import Driver
from heddle_gateway.live.policy import new_core
from heddle_gateway.peers.address import Address
from heddle_gateway.peers.desk import Desks
from heddle_gateway.peers.detour import Detours
from heddle_gateway.peers.handover import Handover
from heddle_gateway.peers.hosting import Hosting
from heddle_gateway.peers.leader_desk import LeaderDesk
from heddle_gateway.peers.own_desk import OwnDesk
from heddle_gateway.peers.reign import Reign, Role
from heddle_gateway.running_step import Attempt, Call, Run
from heddle_gateway.settings import Settings
from heddle_gateway.shared_state import SharedState
from heddle_gateway.stored_answers import StoredAnswers
from heddle_gateway.telemetry.live_mirror import Key, LiveMirror

from tests.system.faults.relay import Relay

from .lossy_mail import MailAway
from .virtual_store import Store

SLOTS = 6
POLICY = {"order": "fcfs", "placement": "sticky", "admission": "unlimited"}
WORKER = WorkerEndpoint(1, 1, "worker", "http://worker", EngineKind.SGLANG, Features(abort=True), None)
MOST_STEP_S = 0.4


@dataclass
class Facts:
    worker_id: int = 1
    generation: int = 1
    name: str = "worker"
    degree: int = 1
    slots: int = SLOTS
    kv_tokens: int = 0
    has_priority: bool = True
    weight_version: str | None = None


class Workers:
    """One, that every gateway knows."""

    def endpoints(self) -> tuple[WorkerEndpoint, ...]:
        return (WORKER,)

    def list(self) -> tuple[Any, ...]:
        return ()

    def registered(self) -> tuple[Any, ...]:
        return ()

    def worker(self, worker_id: int, generation: int) -> WorkerEndpoint:
        return WORKER

    def living(self, url: str) -> tuple[int, int]:
        return 1, 1

    def note_success(self, worker_id: int, generation: int) -> None:
        return None

    def note_failure(self, worker_id: int, generation: int, kind: Any) -> None:
        return None


class Node:
    """One gateway. ``ended``: what its own history would have."""

    def __init__(self, name: str, store: Store) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.ended: list[tuple[str, int]] = []
        self.aborted: list[str] = []
        self.running: list[Run] = []
        self.book = TrajectoryBook()
        self.driver = Driver(
            new_core(POLICY, journal=False),
            Directory(),
            max_trajectories=1000,
            on_expire=lambda *_: None,
            clock=lambda: round(loop.time() * 1e6),
        )
        self.driver.workers.up(Facts())
        workers: Any = Workers()
        shared = SharedState(
            Settings(), "redis://127.0.0.1:1/0", name, self.book, self.driver, lambda _: "worker"
        )
        own = OwnDesk(
            book=self.book,
            driver=self.driver,
            fleet=workers,
            stored=StoredAnswers(workers),
            sinks=(lambda step: self._step_ended(step),),
        )
        self.hosting = Hosting(
            desk=own,
            book=self.book,
            driver=self.driver,
            fleet=workers,
            abort=lambda _, rid: self.aborted.append(rid),
            describe=shared.described,
            lives=lambda process: store.lives(name, process),
            release="1",
        )
        own.on_repeat = self.hosting.repeated
        self.driver.on_orders = self.hosting.orders_changed
        leader = LeaderDesk(
            self.book,
            self.driver.new_ticket,
            on_fleet=lambda specs: None,
            on_orders=self._take_orders,
            on_stop=lambda rid: None,
            note_failure=lambda url, kind: None,
        )
        self.desks = Desks(None, leader)

        def describe(key: Key, number: int) -> tuple[Key, bytes] | None:
            data = shared.described(*key)
            return None if data is None else (key, data)

        self.mirror = LiveMirror(
            store.side(name),
            holder=name,
            describe=describe,
            everything=lambda: [(one.tenant, one.trajectory_id) for one in self.driver.directory],
            fault=MailAway,
        )

        async def take_up() -> None:
            shared.restore(leader.pasts())
            with suppress(MailAway):
                shared.restore(await store.load(name))

        running: Any = self.running
        self.reign = Reign(
            name,
            mirror=self.mirror,
            look=lambda: store.look(name),
            take_up=take_up,
            hosting=self.hosting,
            steps=Handover(self.desks, own, leader, running=running, driver=self.driver, book=self.book),
            detours=Detours(store.office.mail(name), name, self.hosting.protocol, MailAway),
            release="1",
            bind_host="127.0.0.1",
            bind_port=0,
            reached_as="127.0.0.1",
            http="http://nowhere",
        )

    @property
    def role(self) -> Role:
        return self.reign.role

    @property
    def decides(self) -> bool:
        """It decides, and is certain that it may."""
        here = self.desks.here
        return here is not None and asyncio.get_running_loop().time() <= here.sure_until

    @property
    def port(self) -> int:
        address = Address.read(self.reign._address)
        assert address is not None
        return address.port

    def _step_ended(self, step: EndedStep) -> None:
        self.mirror.changed(step.tenant, step.trajectory_id)
        self.hosting.tell_past(step.tenant, step.trajectory_id)

    def _take_orders(self, policy: dict[str, Any], paused: bool) -> None:
        self.driver.change_policy(policy)
        self.driver.pause_dispatch(paused)


@dataclass
class Agent:
    """Sends its history step by step, each step to a gateway drawn by chance. Odd ones are named."""

    number: int
    nodes: Sequence[Node]
    chance: random.Random
    seen: list[tuple[str, int]] = field(default_factory=list)
    """Trajectory and step of each answer."""
    talk: list[Any] = field(default_factory=list)
    most_s: float = MOST_STEP_S
    """Longest step."""

    async def step(self) -> None:
        self.talk = self.talk or [{"role": "user", "content": f"Task {self.number}."}]
        node = self.chance.choice(self.nodes)
        body = json.dumps({"model": "m", "messages": self.talk}).encode()
        headers = {"x-heddle-trajectory-id": f"agent-{self.number}"} if self.number % 2 else {}
        facts = RequestFacts(
            "/v1/chat/completions", headers, {}, scan_body(body, "chat"), "", time.monotonic(), body
        )
        message = {"role": "assistant", "content": f"Agent {self.number} took step {len(self.seen)}."}
        run = await self._begin(node, facts)
        await self._run(node, run)
        answer = run.answer = read_answer(json.dumps({"choices": [{"message": message}]}).encode(), "chat")
        await _sure(node)
        who, now = run.call.who, time.time()
        ended = EndedStep(
            who.trajectory_id, "", who.group_id, who.sample, None, who.source, "m", "chat", who.step,
            who.segment, 1, 0, "worker", Outcome.DONE, 200, "stop", (), 9, 0, 5, True, 0, now, now, None, now,
            None,
        )  # fmt: skip
        node.running.remove(run)
        node.desks.now.end(run, ended, Outcome.DONE, answer, time.monotonic())
        node.ended.append((who.trajectory_id, who.step))
        if node.desks.elsewhere is not None:
            await node.desks.elsewhere.taken(run)
        self.seen.append((who.trajectory_id, who.step))
        self.talk += [message, {"role": "user", "content": "Go on."}]

    async def _begin(self, node: Node, facts: RequestFacts) -> Run:
        desks = node.desks
        if desks.here is not None:
            await _sure(node)
        if desks.here is not None:
            placed = desks.here.arrive(facts, lambda: None)
        else:
            assert desks.elsewhere is not None
            placed = await desks.elsewhere.ask(facts, lambda: None)
        nothing: Any = None
        account: Any = SimpleNamespace(dispatched_at=None, answer_began=False)
        call = Call(nothing, facts.body, facts.scan, placed.who, "", b"", placed.claim, placed.live)
        run = Run(call, nothing, nothing, account, placed.ticket)
        node.running.append(run)
        if desks.elsewhere is not None:
            desks.elsewhere.begun(run)
        return run

    async def _run(self, node: Node, run: Run) -> None:
        desks = node.desks
        while True:
            decision = await run.ticket.decided()
            assert isinstance(decision, Dispatch), decision
            worker = desks.now.worker(decision.worker, decision.generation)
            if worker is None:
                # The leader was lost in between: another decides.
                desks.now.attempt_failed(run, decision, "unreachable")
                continue
            run.attempt = Attempt(decision, worker, f"rid-{self.number}-{len(self.seen)}")
            desks.now.sent(run)
            await asyncio.sleep(self.chance.uniform(self.most_s / 4, self.most_s))
            return


async def _sure(node: Node) -> None:
    """`Desks.sure`, by the loop's time."""
    while asyncio.get_running_loop().time() > (desk := node.desks.now).sure_until:
        await desk.made_sure()


@dataclass
class World:
    """``async with``: gateways that have found their leader. ``cut`` and ``heal``: all links between them."""

    seed: int
    size: int = 3
    nodes: list[Node] = field(default_factory=list)
    endless: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.store = Store(self.chance)
        self._stack = AsyncExitStack()
        self._relays: dict[tuple[str, str], Relay] = {}

    async def __aenter__(self) -> "World":
        for number in range(self.size):
            await self.add(f"node-{number}")
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            await node.reign.close()
            node.driver.close()
        await self._stack.aclose()

    async def add(self, name: str) -> Node:
        node = Node(name, self.store)
        starting = asyncio.create_task(node.reign.start())
        while not node.reign._address:  # noqa: ASYNC110  it is bound in one turn
            await asyncio.sleep(0)
        for other in self.nodes:
            for who, whom in ((node, other), (other, node)):
                relay = await self._stack.enter_async_context(Relay(whom.port))
                self._relays[who.name, whom.name] = relay
                self.store.ports[who.name, whom.name] = relay.port
        self.nodes.append(node)
        await starting
        return node

    @property
    def leader(self) -> Node:
        (found,) = [node for node in self.nodes if node.role is Role.LEADER]
        return found

    @property
    def followers(self) -> list[Node]:
        return [node for node in self.nodes if node.role is Role.FOLLOWER]

    def cut(self, node: Node) -> None:
        """It reaches no other, and none reaches it."""
        for pair, relay in self._relays.items():
            if node.name in pair:
                relay.cut()

    def heal(self) -> None:
        for relay in self._relays.values():
            relay.heal()

    async def until(self, condition: Any, what: str, within_s: float = 30.0) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not condition():  # noqa: ASYNC110  time is simulated
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{within_s:g} s of simulated time in vain for: {what}") from None
