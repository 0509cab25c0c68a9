"""A partition between the gateway and a shim, or two shims, at any moment of a move harms no trajectory."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.system.conftest import Engine, wait_until

from .accounts import counts_agree, journal_replays
from .cluster import Cluster
from .relay import Relay

pytestmark = pytest.mark.faults

NewCluster = Callable[..., Cluster]

DEADLINE_S = 2.0


@dataclass(frozen=True)
class Cut:
    """``link``: between whom. ``when``: before the move is asked for, once pages are at the target and others
    are not, or (end) so that all lands and the word of it is lost.
    """

    link: str
    when: str
    towards: bool = True
    back: bool = True


CUTS = {
    "gateway-shim, before it is asked": Cut("gateway", "start"),
    "gateway-shim, the answer alone": Cut("gateway", "start", towards=False),
    "gateway-shim, in the middle": Cut("gateway", "middle"),
    "gateway-shim, landed and the word of it lost": Cut("gateway", "end", towards=False),
    "shim-shim, before the handshake": Cut("peer", "start"),
    "shim-shim, in the middle of the pages": Cut("pages", "middle"),
    "shim-shim, the receiver's word alone": Cut("pages", "start", towards=False),
}


@pytest.mark.parametrize("half", [0, 1])
async def test_a_move_that_meets_a_partition_harms_no_trajectory(new_cluster: NewCluster, half: int) -> None:
    cluster = new_cluster(options=("--placement", "sticky"))
    await cluster.start(relayed=True)
    async with cluster.rollout() as rollout:
        await rollout.all_have(1)
        for number, (name, cut) in enumerate(list(CUTS.items())[half::2]):
            led = rollout.another(f"led-{number}", f"{name} " + "ab " * 400)
            source = cluster.engine_of((await led.step()).worker)
            target = cluster.other_than(source)
            pages = cluster.shim_of(target).pages
            relay = relay_of(cluster, cut, source=source, target=target)
            if cut.when == "start":
                # The links are known before: it is the move that meets the cut.
                await cluster.linked()
                relay.cut(towards=cut.towards, back=cut.back)
                move = await cluster.move(led.name, target, DEADLINE_S)
            else:
                move = await cluster.move_half(led.name, source, target, DEADLINE_S)
                if relay is not pages:
                    relay.cut(towards=cut.towards, back=cut.back)
            if cut.when == "end":
                pages.heal()

                async def landed(source: Engine = source, name: str = led.name) -> bool:
                    return bool((await cluster.shim_says(source, name))["state"] == "landed")

                await wait_until(landed, "the shim's own landing")
            ended = await cluster.ended(led.name, move)
            assert ended["state"] in {"expired", "failed"}, (name, ended)
            # In the partition the trajectory goes on, and after it: the core believes it at its source.
            assert (await led.step()).worker == source.name, name
            relay.heal()
            pages.heal()
            assert (await led.step()).worker == source.name, name
            # And it can be moved afterwards.
            again = await cluster.move(led.name, target, 60.0)
            assert (await cluster.ended(led.name, again))["state"] == "landed", name
            moved = await led.step()
            assert (moved.worker, moved.cached_tokens > 400) == (target.name, True), (name, moved)
    assert rollout.troubles == 0
    await counts_agree(cluster, rollout)
    await journal_replays(cluster)


async def test_a_step_that_comes_in_a_partition_is_not_held_up(new_cluster: NewCluster) -> None:
    cluster = new_cluster(options=("--placement", "sticky"))
    await cluster.start(relayed=True)
    async with cluster.rollout() as rollout:
        led = rollout.another("led", "ab " * 400)
        source = cluster.engine_of((await led.step()).worker)
        target = cluster.other_than(source)
        move = await cluster.move_half(led.name, source, target, 600.0)
        # The step calls the move off, and the shim does not hear of it.
        cluster.shim_of(source).http.cut()
        assert (await led.step()).worker == source.name
        assert (await cluster.move_of(led.name, move))["state"] == "cancelling"
        cluster.shim_of(source).http.heal()
        assert (await cluster.ended(led.name, move))["state"] == "cancelled"
        cluster.shim_of(target).pages.heal()
        assert (await led.step()).worker == source.name
    assert rollout.troubles == 0
    await counts_agree(cluster, rollout)
    await journal_replays(cluster)


def relay_of(cluster: Cluster, cut: Cut, *, source: Engine, target: Engine) -> Relay:
    match cut.link:
        case "gateway":
            return cluster.shim_of(source).http
        case "peer":
            return cluster.shim_of(target).http
        case _:
            return cluster.shim_of(target).pages
