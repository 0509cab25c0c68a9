"""A live driver with emulated workers and scripted agents, on a loop with simulated time.

The gateway's own driver and directory drive a core; emulated engines, each under its own driver, do what it
dispatches; agents follow the scripts that the simulator got. Times are those of the loop: the core's
microseconds, and engines are looked at on whole microseconds, as the simulator does it.
"""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle_core import Dispatch, scan_body
from heddle_gateway.live.directory import Directory, LiveTrajectory
from heddle_gateway.live.driver import Driver
from heddle_gateway.live.policy import new_core
from heddle_shim.emulator.clock import Timer
from heddle_shim.emulator.driver import EngineDriver
from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.engine_config import EngineConfig
from heddle_shim.emulator.generation import Generation
from heddle_shim.emulator.timing import StepCosts, TimingProfile

from .same_trace import Case, micros, tokens
from .virtual_mover import VirtualMover
from .virtual_time import run_in_virtual_time

SCAN: Final = scan_body(b'{"messages":[{"role":"user","content":"hi"}]}', "chat")

PLAN_TTL_MS: Final = 10**9

Predictions = dict[int, deque[tuple[float, float]]]
"""What a predictor says of each trajectory, in turn: mean and sigma."""


class LoopClock:
    """An engine's clock on the loop's time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def simulated(self, real_seconds: float) -> float:
        return 0.0

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_at(micros(when) / 1e6, callback)


@dataclass(frozen=True)
class Facts:
    """An emulated worker as the fleet would describe it."""

    worker_id: int
    degree: int
    slots: int
    kv_tokens: int
    generation: int = 1
    has_priority: bool = True
    weight_version: str | None = None

    @property
    def name(self) -> str:
        return f"worker {self.worker_id}"


@dataclass(frozen=True)
class Who:
    trajectory_id: str
    group_id: str | None
    step: int
    source: str = "header"
    sample: int | None = None
    parent_id: str | None = None
    segment: int = 0


class LiveCluster:
    """``scripts`` begin in the order of their index, so that handles follow it."""

    def __init__(
        self, case: Case, scripts: Sequence[Any], policy: dict[str, Any], predictions: Predictions
    ) -> None:
        loop = asyncio.get_running_loop()
        self.scripts = scripts
        self.case = case
        self._predictions = predictions
        self._loop = loop
        self.driver = Driver(
            new_core(policy, journal=True),
            Directory(),
            max_trajectories=1_000_000,
            on_expire=lambda live, reason: None,
            clock=lambda: round(loop.time() * 1e6),
            least_timer_s=0.0,
        )
        config = EngineConfig(
            max_running_requests=case.slots,
            max_total_num_tokens=case.kv_tokens,
            chunked_prefill_size=case.chunk,
        )
        self.engines = [
            EngineDriver(Engine(config, StepCosts(TimingProfile(), degree)), LoopClock(), lambda done: None)
            for degree in case.degrees
        ]
        self._mover = VirtualMover(self.driver, self.engines, case.link)
        self.driver.mover = self._mover

    async def run(self) -> bytes:
        """Every agent to its end; the core's journal."""
        for worker, degree in enumerate(self.case.degrees):
            self.driver.workers.up(Facts(worker, degree, self.case.slots, self.case.kv_tokens))
            if self.case.link is not None:
                rate, setup = self.case.link
                self.driver.workers.linked(worker, 1, rate, round(1e6 * setup), None)
        if self.case.shares:
            self.driver.install_plan(1, list(enumerate(self.case.shares)), ttl_ms=PLAN_TTL_MS)
        async with asyncio.TaskGroup() as agents:
            for trajectory in range(len(self.scripts)):
                agents.create_task(self._agent(trajectory))
        assert self.driver.audit() == []
        assert all(engine.engine.audit() == [] for engine in self.engines)
        for engine in self.engines:
            engine.close()
        self.driver.close()
        return self.driver.take_journal()

    async def _agent(self, trajectory: int) -> None:
        prompt, group, start, turns = self.scripts[trajectory]
        text = tokens(f"group {group}", prompt)
        await self._until(micros(start))
        for turn, (appended, output, tool) in enumerate(turns):
            if turn:
                text += tokens(f"{trajectory} tool {turn}", appended)
                prompt += appended
            answer = tokens(f"{trajectory} answer {turn}", output)
            ended_at = await self._step(trajectory, turn, prompt, text, answer)
            text += answer
            prompt += output
            if turn + 1 < len(turns):
                await self._until(micros(ended_at + tool))

    async def _step(self, trajectory: int, turn: int, prompt: int, text: bytes, answer: bytes) -> float:
        """One step as serve_step takes it; when its last token was there."""
        group = self.scripts[trajectory][1]
        who = Who(str(trajectory), None if group is None else str(group), turn)
        live = self.driver.directory.open(who, tenant="", model=None)
        ticket = self.driver.arrive(live, prompt_tokens=prompt, scan=SCAN, on_withdraw=lambda: None)
        if turn == 0:
            self._predict(trajectory, live)
        self._mover.flush()
        decision = await ticket.decided()
        assert isinstance(decision, Dispatch)
        output = self.scripts[trajectory][3][turn][1]
        generation = Generation(
            rid=f"{trajectory}-{turn}",
            prompt=text,
            output=answer,
            max_new_tokens=max(self.case.most_output, output),
            priority=decision.priority,
        )
        self._mover.ran(live, generation)
        await self.engines[decision.worker].submit([generation], stream=False).ended()
        self.driver.first_byte(ticket)
        self.driver.end(
            ticket, "done", prompt_tokens=prompt, output_tokens=output, cached_tokens=generation.cached_tokens
        )
        if turn + 1 < len(self.scripts[trajectory][3]):
            self._predict(trajectory, live)
        assert generation.finished_at is not None
        return generation.finished_at

    def _predict(self, trajectory: int, live: LiveTrajectory) -> None:
        if self._predictions[trajectory]:
            mean, sigma = self._predictions[trajectory].popleft()
            self.driver.predicted(live, mean=mean, sigma=sigma)

    async def _until(self, when: int) -> None:
        woken = self._loop.create_future()
        self._loop.call_at(max(when / 1e6, self._loop.time()), woken.set_result, None)
        await woken


def run_live(case: Case, scripts: Sequence[Any], policy: dict[str, Any], predictions: Predictions) -> bytes:
    """The journal of a live run."""

    async def main() -> bytes:
        return await LiveCluster(case, scripts, policy, predictions).run()

    return run_in_virtual_time(main())


def predictions_in(journal: bytes) -> Predictions:
    """Those that a simulated run was told, by trajectory."""
    found: Predictions = defaultdict(deque)
    for line in journal.splitlines()[1:]:
        told = (json.loads(line).get("event") or {}).get("predicted")
        if told is not None:
            found[told["trajectory"]].append((told["mean"], told["sigma"]))
    return found
