"""Engines in virtual time with round costs, and emulated workers on real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from heddle_shim.emulator.clock import Clock
from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.engine_config import EngineConfig
from heddle_shim.emulator.fleet_server import FleetServer, build_workers
from heddle_shim.emulator.generation import Generation
from heddle_shim.emulator.timing import StepCosts, TimingProfile
from heddle_shim.emulator.tokens import pack
from heddle_shim.emulator.worker import WorkerSettings

# One second a decode step, ten a prefill batch, nothing else: expected times are whole numbers.
ROUND_COSTS = TimingProfile(
    decode_fixed_s=1.0,
    decode_weights_s=0.0,
    decode_request_s=0.0,
    decode_context_s=0.0,
    prefill_fixed_s=10.0,
    prefill_token_s=0.0,
    prefill_context_s=0.0,
)

MakeEngine = Callable[..., Engine]
MakeGeneration = Callable[..., Generation]
Serve = Callable[..., Awaitable[FleetServer]]
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
def make_engine() -> MakeEngine:
    """An engine with round costs; keywords override its configuration."""

    def make(profile: TimingProfile = ROUND_COSTS, degree: int = 1, **config: Any) -> Engine:
        return Engine(EngineConfig(**config), StepCosts(profile, degree))

    return make


@pytest.fixture
def make_generation() -> MakeGeneration:
    """A sequence with a prompt and an answer of its own, unless the ids of a prompt are given."""
    made = 0

    def make(
        prompt: int | list[int] = 100,
        output: int = 10,
        *,
        priority: int | None = None,
        max_new_tokens: int | None = None,
    ) -> Generation:
        nonlocal made
        made += 1
        first = 1_000_000 * made
        ids = list(range(first, first + prompt)) if isinstance(prompt, int) else prompt
        answer = list(range(first + 500_000, first + 500_000 + output))
        allowed = output if max_new_tokens is None else max_new_tokens
        return Generation(f"r{made}", pack(ids), pack(answer), allowed, priority)

    return make


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts workers on free ports; all are stopped at the end of the test."""
    async with AsyncExitStack() as stack:

        async def start(
            degrees: tuple[int, ...] = (1,),
            *,
            clock: Clock | None = None,
            speed: float = 1000.0,
            kv_tokens: int | None = None,
            profile: TimingProfile | None = None,
            engine: dict[str, Any] | None = None,
            **settings: Any,
        ) -> FleetServer:
            chosen = replace(WorkerSettings(**settings), engine=EngineConfig(**(engine or {})))
            workers = build_workers(
                degrees,
                settings=chosen,
                kv_tokens=kv_tokens,
                profile=profile or TimingProfile(),
                speed=speed,
                clock=clock,
            )
            return await stack.enter_async_context(FleetServer(workers, "127.0.0.1", 0))

        yield start


@pytest.fixture
def eventually() -> Eventually:
    """Waits for a condition; fails after ten seconds."""

    async def wait(condition: Callable[[], bool]) -> None:
        for _ in range(2000):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("the condition did not come true in ten seconds")

    return wait
