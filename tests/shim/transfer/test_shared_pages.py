"""Pages that several trajectories share, or that the target has already: sent once, kept, not paid for."""

import asyncio

import httpx
import pytest

from .conftest import PATIENCE_S, HashChain, MakeShim
from .moving import ask, ended, filled


async def test_a_prefix_is_not_sent_where_it_is_known(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    source, target = await make_shim("a"), await make_shim("b")
    names = hash_chain(10)
    filled(source, names)
    filled(target, names[:4])

    status = await ended(client, await ask(client, source, target, names))

    assert (status.pages_present, status.pages_moved) == (4, 6)
    assert target.engine.pages(names) == 10


async def test_a_move_is_weighed_by_what_the_target_lacks(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    source, target = await make_shim("a", rate=1e4), await make_shim("b")
    names = hash_chain(50)
    filled(source, names)
    filled(target, names[:49])
    ten_pages_s = 10 * source.engine.own.layout.page_bytes / 1e4

    status = await ended(client, await ask(client, source, target, names, worth_s=ten_pages_s))

    assert (status.state, status.pages_moved, status.fault) == ("landed", 1, None)
    assert status.expected_s == pytest.approx(ten_pages_s / 10)


async def test_siblings_move_at_once_and_one_after_the_other(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    source = await make_shim("a")
    targets = [await make_shim(name) for name in "bcd"]
    shared = hash_chain(4)
    siblings = [[*shared, *hash_chain(6, seed=str(index))] for index in range(3)]
    for names in siblings:
        filled(source, names)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold(index: int) -> None:
        if index == 1 and not reached.is_set():
            reached.set()
            await go_on.wait()

    source.engine.on_read = hold
    slow = await ask(client, source, targets[0], siblings[0], id="m-1")
    async with asyncio.timeout(PATIENCE_S):
        await reached.wait()
    others = [
        await ended(client, await ask(client, source, targets[index], siblings[index], id=f"m-{index + 1}"))
        for index in (1, 2)
    ]
    go_on.set()

    for status in (await ended(client, slow), *others):
        assert (status.state, status.tokens_landed) == ("landed", 10 * 4)
