"""`heddle fleet watch`, look by look, against a scripted gateway and a scripted host over real sockets."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from heddle_contracts.admin import Phase, TrajectoryPage, TrajectorySummary
from heddle_contracts.fleet import EngineState, HostEngine, HostStatus
from heddle_contracts.rollouts import Rollout, RolloutList, RolloutTrajectories, RolloutTrajectory
from heddle_planner.fleet.lengths_ahead import LengthsAhead
from heddle_planner.fleet.watching import Look, Rules, look
from heddle_planner.profiles import load_profile
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn import Config, Server

LONG, SHORT = 40_000.0, 300.0
WAIT_S = 30.0


class QuietServer(Server):
    """uvicorn inside a test: the signals belong to pytest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def trajectory(name: str, phase: Phase, ahead: float) -> TrajectorySummary:
    return TrajectorySummary(
        trajectory_id=name,
        tenant="",
        source="header",
        phase=phase,
        steps=1,
        segments=1,
        outcomes={},
        prompt_tokens=10,
        cached_tokens=0,
        output_tokens=0,
        first_seen=1.0,
        last_seen=2.0,
        predicted_remaining=ahead,
    )


def rollout(name: str, state: Any, waiting: int = 0) -> Rollout:
    return Rollout(
        id=name,
        state=state,
        created_at=1.0,
        trajectories=9,
        waiting=waiting,
        running=0,
        finished=9,
        steps=9,
        output_tokens=9,
        predicted_remaining=0.0,
    )


def members(state: Any) -> list[RolloutTrajectory]:
    """One long and eight short: generated already where they are over, else expected."""
    return [
        RolloutTrajectory(
            trajectory_id=f"m{number}",
            group_id="g",
            sample=number,
            state=state,
            steps=1,
            output_tokens=int(tokens) if state == "over" else 0,
            predicted_remaining=0.0 if state == "over" else tokens,
        )
        for number, tokens in enumerate([LONG] + [SHORT] * 8)
    ]


class World:
    """A gateway, and a host of 8 GPUs with engines of degree 1 that took 5 s to start."""

    def __init__(self) -> None:
        self.trajectories: list[TrajectorySummary] = []
        self.rollouts: list[Rollout] = []
        self.members: dict[str, list[RolloutTrajectory]] = {}
        self.engines = {f"e{gpu}": self.engine(f"e{gpu}", (gpu,)) for gpu in range(8)}
        self.asked: list[str] = []
        self.broken = False

    @staticmethod
    def engine(name: str, gpus: tuple[int, ...], started_in_s: float = 5.0) -> HostEngine:
        return HostEngine(
            id=name, degree=len(gpus), gpus=gpus, state=EngineState.READY, started_in_s=started_in_s
        )

    @property
    def shape(self) -> list[int]:
        return sorted((one.degree for one in self.engines.values()), reverse=True)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/admin/v1/trajectories", self._list),
                Route("/admin/v1/rollouts", self._rollouts),
                Route("/admin/v1/rollouts/{name}/trajectories", self._members),
                Route("/host/v1/status", self._status),
                Route("/host/v1/engines", self._start, methods=["POST"]),
                Route("/host/v1/engines/{name}", self._engine, methods=["GET", "DELETE"]),
            ]
        )

    async def _list(self, request: Request) -> Response:
        # Without a phase the whole history would be asked for.
        found = [one for one in self.trajectories if one.phase == request.query_params["phase"]]
        # Two a page: the rest has to be asked for.
        first = int(request.query_params.get("cursor", 0))
        more = str(first + 2) if len(found) > first + 2 else None
        page = TrajectoryPage(items=found[first : first + 2], next_cursor=more)
        return Response(page.model_dump_json(), media_type="application/json")

    async def _rollouts(self, _: Request) -> Response:
        if self.broken:
            return Response("what?", status_code=500)
        page = RolloutList(items=tuple(self.rollouts))
        return Response(page.model_dump_json(), media_type="application/json")

    async def _members(self, request: Request) -> Response:
        page = RolloutTrajectories(items=tuple(self.members[request.path_params["name"]]))
        return Response(page.model_dump_json(), media_type="application/json")

    async def _status(self, _: Request) -> Response:
        found = HostStatus(name="h", gpus=8, engines=tuple(self.engines.values()))
        return Response(found.model_dump_json(), media_type="application/json")

    async def _start(self, request: Request) -> Response:
        gpus = tuple((await request.json())["gpus"])
        assert not any(set(gpus) & set(one.gpus) for one in self.engines.values()), "GPUs are taken"
        name = f"n{gpus[0]}"
        self.engines[name] = self.engine(name, gpus)
        self.asked.append(f"start {len(gpus)}")
        return Response(self.engines[name].model_dump_json(), media_type="application/json")

    async def _engine(self, request: Request) -> Response:
        name = request.path_params["name"]
        if request.method == "DELETE":
            del self.engines[name]
            self.asked.append("stop")
            return JSONResponse({})
        return Response(self.engines[name].model_dump_json(), media_type="application/json")


class Watch:
    """One watcher of a world; ``url`` may be changed to one where nobody answers."""

    def __init__(self, world: World, url: str) -> None:
        self.world = world
        self.url = url
        self.ahead = LengthsAhead(url, None)

    async def look(self, *, act: bool = False, floor: float = 0.0) -> Look:
        rules = Rules(load_profile("qwen3-8b-h100"), (1, 2, 4, 8), floor, act, WAIT_S)
        return await look(self.ahead, [self.url], None, rules, lambda move: None)


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    world = World()
    listening = socket.create_server(("127.0.0.1", 0))
    server = QuietServer(Config(world.app(), log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    deadline = time.monotonic() + WAIT_S
    while not server.started:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    watch = Watch(world, f"http://127.0.0.1:{listening.getsockname()[1]}")
    async with watch.ahead:
        yield watch
    server.should_exit = True
    await serving


def running(world: World) -> None:
    """One trajectory that a single GPU takes long for, and a crowd of short ones."""
    world.trajectories = [trajectory("long", Phase.IN_TOOL_GAP, LONG)]
    world.trajectories += [trajectory(f"s{number}", Phase.RUNNING, SHORT) for number in range(8)]


async def test_what_pays_is_said_and_only_done_where_that_was_asked_for(watch: Watch) -> None:
    running(watch.world)
    said = await watch.look()
    assert said.outcome == "would"
    assert said.worth is not None
    assert said.worth.now_s > said.worth.then_s + said.worth.restart_s > said.worth.then_s
    assert "9 trajectories" in said.why
    assert (watch.world.asked, watch.world.shape) == ([], [1] * 8)

    done = await watch.look(act=True)
    assert done.outcome == "done"
    assert done.moves is not None
    assert watch.world.shape == sorted(done.moves.after, reverse=True) != [1] * 8
    watch.world.asked.clear()
    again = await watch.look(act=True)
    assert (again.outcome, watch.world.asked) == ("stays", [])


async def test_a_gain_below_what_the_restarts_take_changes_nothing(watch: Watch) -> None:
    running(watch.world)
    slow = {name: watch.world.engine(name, one.gpus, 3_600.0) for name, one in watch.world.engines.items()}
    watch.world.engines = slow
    said = await watch.look(act=True)
    assert said.outcome == "stays"
    assert said.worth is not None
    assert said.worth.then_s < said.worth.now_s < said.worth.then_s + said.worth.restart_s
    assert watch.world.asked == []


async def test_the_floor_is_kept_or_nothing_is_done(watch: Watch) -> None:
    running(watch.world)
    said = await watch.look(act=True, floor=1.0)
    assert (said.outcome, watch.world.asked) == ("failed", [])
    assert "floor" in said.why


@pytest.mark.parametrize("state", [EngineState.STARTING, EngineState.DRAINING])
async def test_nothing_is_begun_while_an_engine_starts_or_drains(watch: Watch, state: EngineState) -> None:
    running(watch.world)
    watch.world.engines["e3"] = watch.world.engines["e3"].model_copy(update={"state": state})
    said = await watch.look(act=True)
    assert (said.outcome, watch.world.asked) == ("busy", [])
    assert "e3" in said.why


async def test_between_rollouts_the_last_ones_lengths_count_once(watch: Watch) -> None:
    world = watch.world
    world.rollouts = [rollout("ro-old", "finished")]
    assert (await watch.look()).outcome == "nothing", "it ended before anybody looked"

    world.rollouts = [rollout("ro-new", "finished"), *world.rollouts]
    world.members = {"ro-new": members("over")}
    said = await watch.look()
    assert (said.outcome, said.why) == ("would", "rollout ro-new has ended")
    assert (await watch.look()).outcome == "nothing"


async def test_an_announced_rollout_counts_before_its_first_step(watch: Watch) -> None:
    watch.world.rollouts = [rollout("ro-1", "announced", waiting=9)]
    watch.world.members = {"ro-1": members("waiting")}
    said = await watch.look()
    assert (said.outcome, said.why) == ("would", "9 trajectories run or are announced")


async def test_a_rollout_that_ended_while_others_ran_counts_when_nothing_runs(watch: Watch) -> None:
    running(watch.world)
    assert (await watch.look()).outcome == "would"
    watch.world.rollouts = [rollout("ro-1", "finished")]
    watch.world.trajectories = []
    watch.world.members = {"ro-1": members("over")}
    assert (await watch.look()).why == "rollout ro-1 has ended"


async def test_a_gateway_or_a_host_that_is_away_ends_one_look_and_nothing_else(watch: Watch) -> None:
    running(watch.world)
    watch.world.broken = True
    said = await watch.look(act=True)
    assert (said.outcome, watch.world.asked) == ("failed", [])
    assert "--gateway: 500" in said.why
    watch.world.broken = False
    url, watch.url = watch.url, "http://127.0.0.1:1"
    assert "--host" in (await watch.look(act=True)).why
    watch.url = url
    assert (await watch.look()).outcome == "would"
