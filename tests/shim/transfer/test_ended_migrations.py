"""Migrations that end before all has landed: cancelled, too late, overtaken by new weights or a lost page."""

import asyncio

import httpx
from heddle_contracts.kv import MigrationRequest, MigrationStatus
from heddle_shim.transfer.page_file import HEADER

from .conftest import PATIENCE_S, Eventually, HashChain, MakeShim
from .moving import ask, ended, filled


async def test_cancelling_frees_the_room_at_the_target_at_once(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain, eventually: Eventually
) -> None:
    source, target = await make_shim("a"), await make_shim("b")
    names = hash_chain(10)
    filled(source, names)
    reached = asyncio.Event()

    async def hold(index: int) -> None:
        if index == 5:
            reached.set()
            await asyncio.Event().wait()

    source.engine.on_read = hold
    url = await ask(client, source, target, names)
    async with asyncio.timeout(PATIENCE_S):
        await reached.wait()
    status = MigrationStatus.model_validate_json((await client.delete(url)).content)

    assert (status.state, status.fault) == ("cancelled", "cancelled")
    assert source.engine.pages(names) == 10
    assert source.engine.store.usage().pinned == 0
    await eventually(lambda: not target.receiver.arriving)
    assert target.engine.store.usage().promised == 0
    assert (await ended(client, url)) == status


async def test_one_cancelled_before_it_began_ends_too(
    make_shim: MakeShim, hash_chain: HashChain, client: httpx.AsyncClient
) -> None:
    source = await make_shim("a")
    request = MigrationRequest(
        id="m-1", trajectory="t", target="http://127.0.0.1:9", page_hashes=tuple(hash_chain(1)), deadline_s=9
    )
    source.migrations.start(request)
    async with asyncio.timeout(PATIENCE_S):
        status = await source.migrations.cancel("m-1")

    assert status.state == "cancelled"


async def test_the_deadline_ends_a_move(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain, eventually: Eventually
) -> None:
    source, target = await make_shim("a"), await make_shim("b")
    names = hash_chain(10)
    filled(source, names)

    async def hold(index: int) -> None:
        if index == 5:
            await asyncio.Event().wait()

    source.engine.on_read = hold
    status = await ended(client, await ask(client, source, target, names, deadline_s=1.0))

    assert (status.state, status.fault) == ("expired", "deadline")
    assert source.engine.pages(names) == 10
    await eventually(lambda: not target.receiver.arriving)
    assert target.engine.store.usage().promised == 0


async def test_weights_updated_in_the_middle_end_a_move(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    source, target = await make_shim("a"), await make_shim("b")
    names = hash_chain(10)
    filled(source, names)

    async def update(index: int) -> None:
        if index == 5:
            source.engine.store.set_weight_version("2")

    source.engine.on_read = update
    status = await ended(client, await ask(client, source, target, names))

    assert (status.state, status.fault) == ("failed", "weights_changed")
    assert status.detail.startswith("weight_version")


async def test_a_page_lost_at_the_source_ends_the_prefix_there(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    source, target = await make_shim("a"), await make_shim("b")
    names = hash_chain(10)
    filled(source, names)
    store = source.engine.store
    path = store.root / "pages" / source.engine.own.digest / f"{names[6]}.0"
    path.write_bytes(path.read_bytes()[: HEADER.size] + bytes(source.engine.own.layout.rank_page_bytes))

    status = await ended(client, await ask(client, source, target, names))

    assert (status.state, status.tokens_landed) == ("landed", 6 * 4)
    assert target.engine.pages(names) == 6
