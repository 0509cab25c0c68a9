"""Everybody who counts, asked after a fault: agents, core, metrics, history in SQL, workers, journal."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from heddle_core import replay

from tests.system.conftest import Engine, wait_until

from .agents import Rollout
from .cluster import Cluster

SETTLED = {"dispatches", "rejects", "withdrawals", "preemptions", "stolen", "moves"} | {
    "steps_arrived",
    "steps_ended",
}


async def every_trajectory_ended_once(cluster: Cluster, rollout: Rollout) -> None:
    """No step of an agent is lost and none ran twice, as the agents and the history see it."""
    done = Counter(
        (name, step)
        for name, step in await cluster.sql("select trajectory_id, step from steps where outcome = 'done'")
    )
    assert set(done.values()) <= {1}, "recorded twice: " + str([key for key, n in done.items() if n > 1])
    expected = set()
    for agent in rollout.agents:
        names = {answer.trajectory_id for answer in agent.answers}
        assert len(names) == 1, f"{agent.name} was split into {names}"
        assert [answer.step for answer in agent.answers] == list(range(len(agent.answers))), agent.name
        assert agent.tag == "none" or names == {agent.name}
        expected |= {(answer.trajectory_id, answer.step) for answer in agent.answers}
    assert len(expected) == sum(len(agent.answers) for agent in rollout.agents), "two agents share one"
    assert set(done) == expected


async def counts_agree(
    cluster: Cluster, rollout: Rollout, *, died: Sequence[Engine] = (), gateway_died: bool = False
) -> Any:
    """All of them, once nothing runs any more. ``died``: workers that have forgotten what they counted.
    ``gateway_died``: core and metrics are those of its last life alone. Returns the gateway's counts.
    """
    gateway = cluster.gateway
    stats = await gateway.at_rest()
    await gateway.is_sound()
    history = stats["history"]
    assert (history["dropped"], history["refused"], history["spilled"]) == (0, 0, 0)
    await every_trajectory_ended_once(cluster, rollout)

    sql = dict(await cluster.sql("select outcome, count(*) from steps group by outcome"))
    ended = {outcome: number for outcome, number in stats["steps"]["ended"].items() if number}
    core, metrics = stats["core"], await gateway.metrics()
    counted: Counter[str] = Counter()
    for name, labels, value in metrics:
        if name == "heddle_steps_total":
            counted[labels["outcome"]] += int(value)
    assert counted == ended
    assert {name: core[f"steps_{name}_total"] for name in ended} == ended
    assert core["steps_arrived_total"] == sum(ended.values())
    if gateway_died:
        assert all(sql.get(name, 0) >= number for name, number in ended.items())
    else:
        assert sql == ended
    (totals,) = await cluster.sql("select sum(done), sum(worker_lost), sum(output_tokens) from trajectories")
    (rows,) = await cluster.sql(
        "select count(*) filter (where outcome = 'done'), count(*) filter (where outcome = 'worker_lost'),"
        " sum(output_tokens) from steps"
    )
    assert totals == rows

    assert core["transfers"] == core["transfers_requested"] == 0
    if not gateway_died:
        moves = dict(await cluster.sql("select state, count(*) from migrations group by state"))
        assert sum(moves.values()) == core["migrations_started_total"]
        for state in ("landed", "failed"):
            assert moves.get(state, 0) == core[f"migrations_{state}_total"], (moves, core)
    for engine in cluster.engines:
        await worker_agrees(cluster, engine, died=engine in died, lost=gateway_died)
    return stats


async def worker_agrees(cluster: Cluster, engine: Engine, *, died: bool, lost: bool) -> None:
    """The worker is idle, nothing of its KV is held for anybody, and it has ended what the history says.
    ``lost``: a gateway may have died with an answer of it in hand.
    """
    http = cluster.gateway.http
    counts: dict[str, float] = {}

    async def rests() -> bool:
        counts.update(await engine.metrics(http))
        running = counts["sglang:num_running_reqs"] + counts["sglang:num_queue_reqs"]
        held = counts["sglang:max_total_num_tokens"] - (
            counts["sglang:kv_available_tokens"] + counts["sglang:kv_evictable_tokens"]
        )
        return (running, held) == (0, 0)

    await wait_until(rests, f"{engine.name} idle, with no KV held: {counts}")
    if died:
        return
    finished = counts["sglang:num_requests_total"] - counts["sglang:num_aborted_requests_total"]
    query = f"select count(*) from steps where outcome = 'done' and worker = '{engine.name}'"
    [(recorded,)] = await cluster.sql(query)
    if lost:
        assert finished >= recorded
    else:
        assert finished == recorded, engine.name


async def journal_replays(cluster: Cluster) -> None:
    """Ends the gateway: what it wrote down decides the same, and counts the same, in a fresh core."""
    stats = await cluster.gateway.get("/stats")
    assert await cluster.gateway.part.stop() == 0
    written = cluster.journal.read_bytes()
    first, second = replay(written), replay(written)
    assert first == second
    assert first["events"] == written.count(b"\n") - 1
    decided = {
        name: number
        for name, number in stats["core"].items()
        if name.startswith("migrations_") or name.removesuffix("_total") in SETTLED
    }
    assert {name: first["stats"][name] for name in decided} == decided
