"""Migrations between two shims over real sockets: what lands, and every way in which nothing does."""

from typing import Any

import httpx
import pytest
from heddle_shim.transfer.migrations import _reachable
from heddle_shim.transfer.page_file import PageBytes
from heddle_shim.transfer.reshard import reshard
from heddle_shim.transfer.tcp_receiver import TcpReceiver

from .conftest import Eventually, HashChain, MakeNamespace, MakeShim
from .moving import ask, content, ended, filled


async def test_pages_land_whole_and_the_source_keeps_what_others_may_share(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    source, target = await make_shim("a"), await make_shim("b")
    names = hash_chain(20)
    filled(source, names)

    status = await ended(client, await ask(client, source, target, names))

    assert status.state == "landed"
    assert (status.pages, status.pages_moved, status.pages_present) == (20, 20, 0)
    assert status.tokens_landed == 20 * 4
    assert status.bytes_moved == 20 * source.engine.own.layout.page_bytes
    assert target.engine.pages(names) == 20
    shelf = target.engine.store.shelf(target.engine.own)
    expected = content(target.engine.own.layout.rank_page_bytes)
    assert all(shelf.get(name, 0) == expected(name, 0) for name in names)
    assert source.engine.pages(names) == 20
    assert source.engine.store.usage().pinned == 0
    assert target.engine.store.usage().promised == 0
    assert target.receiver.arriving == 0
    assert target.engine.store.audit() == source.engine.store.audit() == []


@pytest.mark.parametrize(("degree", "back"), [(1, 2), (2, 1), (4, 8), (8, 1)])
async def test_pages_are_re_sharded_on_the_way_and_come_back_the_same(
    degree: int,
    back: int,
    make_shim: MakeShim,
    make_namespace: MakeNamespace,
    client: httpx.AsyncClient,
    hash_chain: HashChain,
) -> None:
    here, there = make_namespace(tp_size=degree), make_namespace(tp_size=back)
    source, target = await make_shim("a", here), await make_shim("b", there)
    names = hash_chain(5)
    filled(source, names)
    expected = content(here.layout.rank_page_bytes)

    await ended(client, await ask(client, source, target, names))
    shelf = target.engine.store.shelf(there)
    for name in names:
        parts: list[PageBytes] = [expected(name, part) for part in range(here.layout.parts)]
        for part, data in enumerate(reshard(here.layout, there.layout, parts)):
            assert shelf.get(name, part) == bytes(data)
    await ended(client, await ask(client, target, source, names, id="m-2"))

    home = source.engine.store.shelf(here)
    for name in names:
        for part in range(here.layout.parts):
            assert home.get(name, part) == expected(name, part)


async def test_the_same_id_again_is_the_same_migration(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    source, target = await make_shim("a"), await make_shim("b")
    names = hash_chain(3)
    filled(source, names)

    first = await ended(client, await ask(client, source, target, names))
    again = await ended(client, await ask(client, source, target, names))

    assert again == first
    listed = (await client.get(f"{source.url}/shim/v1/migrations")).json()
    assert [item["id"] for item in listed["items"]] == ["m-1"]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("weight_version", {"weights": "2"}),
        ("model", {"model": "other"}),
        ("dtype", {"dtype": "bfloat16"}),
        ("layers", {"layers": 3}),
        ("page_size", {"page_size": 8}),
        ("kv_heads", {"kv_heads": 2}),
    ],
)
async def test_what_cannot_match_is_refused_by_name_and_moves_nothing(
    field: str,
    change: dict[str, Any],
    make_shim: MakeShim,
    make_namespace: MakeNamespace,
    client: httpx.AsyncClient,
    hash_chain: HashChain,
) -> None:
    source, target = await make_shim("a"), await make_shim("b", make_namespace(**change))
    names = hash_chain(3)
    filled(source, names)

    status = await ended(client, await ask(client, source, target, names))

    assert (status.state, status.fault) == ("failed", "mismatch")
    assert status.detail.startswith(field)
    assert source.engine.pages(names) == 3
    assert target.engine.store.usage().pages == 0


async def test_the_receiver_checks_for_itself(
    make_shim: MakeShim, make_namespace: MakeNamespace, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    """The target's weights change after it said who it is and before the offer comes."""
    source, target = await make_shim("a"), await make_shim("b")
    names = hash_chain(3)
    filled(source, names)

    async def change(_: int) -> None:
        target.engine.own = make_namespace(weights="2")

    asking = source.migrations._ask

    async def ask_then_change(url: str) -> Any:
        found = await asking(url)
        await change(0)
        return found

    source.migrations._ask = ask_then_change
    status = await ended(client, await ask(client, source, target, names))

    assert (status.state, status.fault) == ("failed", "mismatch")
    assert target.receiver.arriving == 0


async def test_a_full_target_refuses_and_loses_nothing(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    source, target = await make_shim("a"), await make_shim("b", budget=13_000)
    names, own = hash_chain(10), hash_chain(5, seed="own")
    filled(source, names)
    filled(target, own)

    status = await ended(client, await ask(client, source, target, names))

    assert (status.state, status.fault) == ("failed", "target_full")
    assert target.engine.pages(own) == 5
    assert source.engine.pages(names) == 10
    assert target.engine.store.usage().promised == 0


async def test_a_move_that_cannot_pay_or_be_in_time_is_declined_with_the_numbers(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain, eventually: Eventually
) -> None:
    source, target = await make_shim("a", rate=1000.0), await make_shim("b")
    names = hash_chain(10)
    filled(source, names)

    worth = await ended(client, await ask(client, source, target, names, worth_s=0.5))
    late = await ended(client, await ask(client, source, target, names, id="m-2", deadline_s=10.0))

    assert (worth.state, worth.fault) == (late.state, late.fault) == ("declined", "not_worth_it")
    assert worth.detail.startswith("worth_s")
    assert late.detail.startswith("deadline_s")
    assert worth.expected_s is not None
    assert worth.expected_s > 0.5
    assert (worth.bytes_moved, target.engine.store.usage().pages) == (0, 0)
    await eventually(lambda: not target.receiver.arriving)
    assert target.engine.store.usage().promised == 0


async def test_nothing_to_move_an_unreachable_target_and_an_engine_that_cannot_are_told_apart(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    source, target = await make_shim("a"), await make_shim("b")
    names = hash_chain(3)

    nothing = await ended(client, await ask(client, source, target, names))
    filled(source, names)
    nowhere = await ended(client, await ask(client, source, "http://127.0.0.1:9", names, id="m-2"))
    target.engine.refusal = "pipeline parallel"
    cannot = await ended(client, await ask(client, source, target, names, id="m-3"))

    assert (nothing.fault, nowhere.fault, cannot.fault) == ("nothing_to_move", "target_unreachable", "engine")
    assert "pipeline parallel" in cannot.detail


async def test_bad_requests_name_the_field(make_shim: MakeShim, client: httpx.AsyncClient) -> None:
    shim = await make_shim("a")
    url = f"{shim.url}/shim/v1/migrations"
    good = {"id": "m", "trajectory": "t", "target": "http://x", "deadline_s": 1, "rid": "r"}

    async def refused(body: dict[str, Any]) -> dict[str, Any]:
        answer = await client.post(url, json=body)
        assert answer.status_code == 422
        found: dict[str, Any] = answer.json()
        return found

    assert (await refused({**good, "deadline_s": 0}))["field"] == "deadline_s"
    assert (await refused({**good, "target": "ftp://x"}))["field"] == "target"
    assert (await refused({**good, "page_hashes": ["xyz"]}))["field"].startswith("page_hashes")
    assert "rid" in (await refused({**good, "rid": None}))["detail"]
    assert (await client.get(f"{url}/unknown")).status_code == 404
    assert (await client.delete(f"{url}/unknown")).status_code == 404
    assert (await client.get(f"{url}/m?wait=soon")).json()["field"] == "wait"


async def test_the_handshake_and_health_say_who_stands_there(
    make_shim: MakeShim, client: httpx.AsyncClient
) -> None:
    shim = await make_shim("a")

    handshake = (await client.get(f"{shim.url}/shim/v1/handshake")).json()
    health = (await client.get(f"{shim.url}/shim/v1/health")).json()

    assert handshake["namespace"]["model"] == "tiny"
    assert handshake["transports"] == {"tcp": shim.receiver.address}
    assert health["instance"] == handshake["instance"]
    assert (health["engine"], health["migrations"]) == ("ready", 0)


async def test_a_receiver_on_all_addresses_is_reached_where_its_shim_was(
    make_shim: MakeShim, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    source, target = await make_shim("a"), await make_shim("b")
    names = hash_chain(3)
    filled(source, names)
    everywhere = TcpReceiver(target.engine, "0.0.0.0")
    await everywhere.start()
    target.receivers["tcp"] = everywhere
    assert everywhere.address.startswith("0.0.0.0:")

    status = await ended(client, await ask(client, source, target, names))

    assert status.state == "landed"
    await everywhere.close()
    assert [_reachable(address, "http://[fd00::1]:31900") for address in ("[::]:5", "10.0.0.2:5")] == [
        "[fd00::1]:5",
        "10.0.0.2:5",
    ]


async def test_a_shim_learns_its_rate_and_does_not_stay_with_a_bad_one(
    make_shim: MakeShim, make_namespace: MakeNamespace, client: httpx.AsyncClient, hash_chain: HashChain
) -> None:
    large = make_namespace(head_dim=512, page_size=16)
    source, target = (
        await make_shim("a", large, budget=16 << 20),
        await make_shim("b", large, budget=16 << 20),
    )
    names, others = hash_chain(4), hash_chain(4, seed="other")
    filled(source, names)
    filled(source, others)
    assert source.migrations.rate is None

    unseen = await ended(client, await ask(client, source, target, names, worth_s=1e-6))
    assert unseen.state == "declined"
    landed = await ended(client, await ask(client, source, target, names, id="m-2"))
    assert landed.state == "landed"
    learned = source.migrations.rate
    assert learned is not None

    await ended(client, await ask(client, source, target, others, id="m-3", worth_s=1e-6))
    assert source.migrations.rate == pytest.approx(1.1 * learned)
