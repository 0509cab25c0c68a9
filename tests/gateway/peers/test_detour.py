"""Links by way of Redis: in order or lost, whatever becomes of the messages. In simulated time."""

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from heddle_gateway.peers.detour import Detours
from heddle_gateway.peers.frames import Frame
from heddle_gateway.peers.link import Link, LinkTuning

from tests.simulate.virtual_time import run_in_virtual_time

from .lossy_mail import MailAway, PostOffice

TUNING = LinkTuning()
SENT = 200


@dataclass
class Side:
    """One end of a link, and what it heard."""

    frames: list[Frame] = field(default_factory=list)
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    def link(self) -> Link:
        self.end = Link(lambda _, frame: self.frames.append(frame), lambda _: self.lost.set(), TUNING)
        return self.end

    @property
    def numbers(self) -> list[int]:
        return [frame.head["k"] for frame in self.frames]


async def talk(office: PostOffice, chance: random.Random, *, breaks: bool = False) -> tuple[Side, Side]:
    """Both say numbers, now and then, as far as they are connected; returns both once nothing moves, with the
    links closed. ``breaks``: whether each end that was reached is to be lost before that.
    """
    near, far = Side(), Side()
    one = Detours(office.mail("one"), "one", near.link, MailAway)
    other = Detours(office.mail("other"), "other", far.link, MailAway)
    one.start()
    other.start()
    one.connect("other", near.link())
    near.end.send("go", k=0)
    async with asyncio.timeout(30.0):
        while not far.frames and not near.lost.is_set():  # noqa: ASYNC110  time is simulated
            await asyncio.sleep(0.01)
    for number in range(1, SENT):
        near.end.send("go", b"x" * chance.randrange(400_000 if number % 50 == 0 else 40), k=number)
        if far.frames:
            far.end.send("is", k=number)
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.001, 0.4]))
    await asyncio.sleep(3 * TUNING.silent_s)
    # Closing loses what is left.
    assert near.lost.is_set() == breaks
    assert (far.lost.is_set() or not far.frames) if breaks else not far.lost.is_set()
    await one.close()
    await other.close()
    return near, far


@pytest.mark.parametrize("seed", range(5))
def test_frames_come_whole_and_in_order_both_ways(seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        near, far = await talk(PostOffice(chance), chance)
        assert far.numbers == list(range(SENT))
        assert near.numbers == list(range(1, SENT))
        assert near.end.is_detour
        assert far.end.is_detour
        assert near.lost.is_set(), "a closed link is lost at both ends"
        assert far.lost.is_set()

    run_in_virtual_time(main())


@pytest.mark.parametrize("seed", range(40))
def test_a_message_that_gets_lost_ends_the_link_and_nothing_behind_it_is_heard(seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        office = PostOffice(chance, loss=0.02)
        near, far = await talk(office, chance, breaks=True)
        assert office.lost > 0
        assert far.numbers == list(range(len(far.numbers)))
        assert near.numbers == list(range(1, len(near.numbers) + 1))

    run_in_virtual_time(main())


def test_a_store_that_is_away_ends_the_link() -> None:
    async def main() -> None:
        chance = random.Random(1)
        office = PostOffice(chance)
        near, far = Side(), Side()
        sides = [
            Detours(office.mail(name), name, side.link, MailAway)
            for name, side in (("one", near), ("other", far))
        ]
        for side in sides:
            side.start()
        sides[0].connect("other", near.link())
        near.end.send("go", k=0)
        await asyncio.sleep(1.0)
        assert far.numbers == [0]
        office.away.add("one")
        began = asyncio.get_running_loop().time()
        await near.lost.wait()
        await far.lost.wait()
        assert asyncio.get_running_loop().time() - began <= TUNING.silent_s + 2 * TUNING.ping_s
        for side in sides:
            await side.close()

    run_in_virtual_time(main())
