"""The page store: whole pages or none, a budget that holds, eviction that spares what is pinned."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from heddle_contracts.kv import KvNamespace
from heddle_shim.transfer.page_file import HEADER, file_size
from heddle_shim.transfer.page_store import PageStore, remove_abandoned
from heddle_shim.transfer.store_errors import StoreInUse, StoreMissing, StoreTooLarge

from .conftest import HashChain, MakeNamespace, MakeStore


def page(namespace: KvNamespace, fill: int) -> bytes:
    return bytes([fill % 256]) * namespace.layout.rank_page_bytes


def test_a_page_comes_back_as_it_went_in(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    namespace = make_namespace()
    shelf = make_store().shelf(namespace)
    (name,) = hash_chain(1)
    data = os.urandom(namespace.layout.rank_page_bytes)

    assert shelf.get(name, 0) is None
    assert shelf.put(name, 0, data)
    assert shelf.get(name, 0) == data
    buffer = bytearray(len(data))
    assert shelf.read_into(name, 0, buffer)
    assert buffer == data
    assert not shelf.read_into(name, 0, bytearray(len(data) + 1))


def test_ranks_layouts_and_weight_versions_are_kept_apart(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    store = make_store()
    (name,) = hash_chain(1)
    here = make_namespace()
    store.shelf(here).put(name, 0, page(here, 1))

    assert not store.shelf(here).has(name, 1)
    for other in (make_namespace(weights="2"), make_namespace(model="other"), make_namespace(tp_size=2)):
        assert not store.shelf(other).has(name, 0)
    assert here in store.namespaces()


def test_a_prefix_ends_at_the_first_hole_in_any_rank(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    namespace = make_namespace(tp_size=2)
    shelf = make_store().shelf(namespace)
    names = hash_chain(4)
    for index, name in enumerate(names):
        for rank in (0, 1):
            if (index, rank) != (2, 1):
                shelf.put(name, rank, page(namespace, index))

    assert shelf.prefix(names, (0, 1)) == 2
    assert shelf.prefix(names, (0,)) == 4


def test_another_process_sees_the_pages_and_they_outlive_it(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    store, namespace, (name,) = make_store(), make_namespace(), hash_chain(1)
    script = (
        "import sys; from pathlib import Path; from heddle_contracts.kv import KvNamespace\n"
        "from heddle_shim.transfer.page_store import PageStore\n"
        "namespace = KvNamespace.model_validate_json(sys.argv[2])\n"
        "shelf = PageStore.attach(Path(sys.argv[1])).shelf(namespace)\n"
        "assert shelf.put(sys.argv[3], 0, bytes([7]) * namespace.layout.rank_page_bytes)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(store.root), namespace.model_dump_json(), name], check=True
    )

    assert store.shelf(namespace).get(name, 0) == page(namespace, 7)


def test_a_writer_killed_in_mid_write_leaves_no_page_and_no_claim(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    store, namespace, (name,) = make_store(), make_namespace(), hash_chain(1)
    script = (
        "import os, sys; from pathlib import Path\n"
        "from heddle_shim.transfer.page_store import PageStore\n"
        "store = PageStore.attach(Path(sys.argv[1]))\n"
        "with store.locked():\n    fd, path = store.stage(5000)\n"
        "os.write(fd, b'half a page'); print(path, flush=True); sys.stdin.read()\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    staged = Path(writer.stdout.readline().strip())
    assert staged.exists()
    store.usage()
    assert staged.exists(), "a page that is being written was swept"

    writer.send_signal(signal.SIGKILL)
    writer.communicate()

    assert store.usage().bytes == 0
    assert not staged.exists()
    assert not store.shelf(namespace).has(name, 0)
    assert store.audit() == []


def test_a_broken_page_is_not_served_and_can_be_stored_again(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    namespace = make_namespace()
    store = make_store()
    shelf = store.shelf(namespace)
    flipped, cut = hash_chain(2)
    for name in (flipped, cut):
        shelf.put(name, 0, page(namespace, 3))
    path = store.root / "pages" / namespace.digest
    with open(path / f"{flipped}.0", "r+b") as file:
        file.seek(HEADER.size + 10)
        file.write(b"\xff")
    os.truncate(path / f"{cut}.0", HEADER.size + 10)

    assert shelf.get(flipped, 0) is None
    assert not shelf.read_into(cut, 0, bytearray(namespace.layout.rank_page_bytes))
    assert not shelf.has(flipped, 0)
    assert shelf.put(flipped, 0, page(namespace, 3))
    assert shelf.get(flipped, 0) == page(namespace, 3)


def test_the_budget_holds_and_the_least_recently_used_go_first(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    namespace = make_namespace()
    size = file_size(namespace.layout.rank_page_bytes)
    store = make_store(budget=size * 10)
    shelf = store.shelf(namespace)
    names = hash_chain(10)
    for name in names:
        assert shelf.put(name, 0, page(namespace, 1))
    shelf.touch(names[:3], (0,))

    newcomer = hash_chain(1, seed="new")[0]
    assert shelf.put(newcomer, 0, page(namespace, 2))

    assert all(shelf.has(name, 0) for name in names[:3])
    assert not shelf.has(names[3], 0)
    assert store.usage().bytes <= size * 10
    assert store.audit() == []


def test_a_prefix_used_as_one_is_evicted_from_its_end(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    namespace = make_namespace()
    size = file_size(namespace.layout.rank_page_bytes)
    shelf = make_store(budget=size * 8).shelf(namespace)
    names = hash_chain(8)
    for name in names:
        shelf.put(name, 0, page(namespace, 1))
    shelf.touch(names, (0,))

    shelf.put(hash_chain(1, seed="new")[0], 0, page(namespace, 2))

    left = shelf.prefix(names, (0,))
    assert 4 <= left < 8
    assert not any(shelf.has(name, 0) for name in names[left:])


def test_pinned_pages_are_spared_until_the_pin_ends(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    namespace = make_namespace()
    size = file_size(namespace.layout.rank_page_bytes)
    store = make_store(budget=size * 4)
    shelf = store.shelf(namespace)
    names = hash_chain(4)
    for name in names:
        shelf.put(name, 0, page(namespace, 1))
    store.pin("migration m/1", namespace, names, seconds=1000)
    newcomer = hash_chain(1, seed="new")[0]

    assert not shelf.put(newcomer, 0, page(namespace, 2)), "a pinned page was evicted"
    assert store.usage().pinned == 4

    store.unpin("migration m/1")
    store.unpin("migration m/1")
    assert shelf.put(newcomer, 0, page(namespace, 2))
    store.pin("short", namespace, [newcomer], seconds=-1)
    assert store.usage().pinned == 0


def test_promised_space_is_kept_for_whom_it_was_promised(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    namespace = make_namespace()
    size = file_size(namespace.layout.rank_page_bytes)
    store = make_store(budget=size * 10)
    shelf = store.shelf(namespace)
    promise = store.promise(size * 4)
    assert promise is not None
    assert store.promise(size * 2) is None, "more than half of the store was promised"
    own = hash_chain(20, seed="own")
    for name in own:
        assert shelf.put(name, 0, page(namespace, 1))
    assert store.usage().promised == size * 4
    assert sum(shelf.has(name, 0) for name in own) <= 6

    for name in hash_chain(4, seed="arriving"):
        assert shelf.put(name, 0, page(namespace, 2), promise)
    assert promise.left == 0
    promise.close()
    promise.close()

    assert shelf.prefix(hash_chain(4, seed="arriving"), (0,)) == 4
    assert store.usage().promised == 0
    assert store.audit() == []


def test_writers_in_many_threads_and_processes_keep_to_the_budget(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    namespace = make_namespace()
    store = make_store(budget=file_size(namespace.layout.rank_page_bytes) * 20)

    def fill(seed: str) -> None:
        shelf = store.shelf(namespace)
        for name in hash_chain(60, seed=seed):
            assert shelf.put(name, 0, page(namespace, 5))

    script = (
        "import sys; from pathlib import Path; from heddle_contracts.kv import KvNamespace\n"
        "from heddle_shim.transfer.page_store import PageStore\n"
        "namespace = KvNamespace.model_validate_json(sys.argv[2])\n"
        "shelf = PageStore.attach(Path(sys.argv[1])).shelf(namespace)\n"
        "data = bytes(namespace.layout.rank_page_bytes)\n"
        "assert all([shelf.put(name, 0, data) for name in sys.argv[3:]])\n"
    )
    arguments = [sys.executable, "-c", script, str(store.root), namespace.model_dump_json()]
    others = [subprocess.Popen([*arguments, *hash_chain(60, seed=f"process {n}")]) for n in range(2)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(fill, (f"thread {number}" for number in range(4))))

    assert [other.wait() for other in others] == [0, 0]
    assert store.audit() == []
    assert 0 < store.usage().pages <= 20


def test_dropping_a_namespace_removes_its_pages_alone(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    store = make_store()
    old, new = make_namespace(weights="1"), make_namespace(weights="2")
    names = hash_chain(3)
    kept = store.shelf(old)
    for namespace in (old, new):
        for name in names:
            store.shelf(namespace).put(name, 0, page(namespace, 1))

    assert store.drop(old) == 3

    assert (kept.prefix(names, (0,)), store.shelf(new).prefix(names, (0,))) == (0, 3)
    # An engine that cleared its storage goes on with the shelf it has, in each of its ranks.
    assert kept.put(names[0], 0, page(old, 1))
    assert kept.prefix(names, (0,)) == 1
    assert store.audit() == []


def test_the_weight_version_is_seen_by_who_attaches(make_store: MakeStore) -> None:
    store = make_store()
    assert store.weight_version is None
    store.set_weight_version("7")
    attached = PageStore.attach(store.root)
    assert attached.weight_version == "7"
    attached.close()


def test_a_store_has_one_owner_and_is_taken_over_with_its_pages(
    make_store: MakeStore, make_namespace: MakeNamespace, hash_chain: HashChain
) -> None:
    first, namespace, (name,) = make_store(), make_namespace(), hash_chain(1)
    first.shelf(namespace).put(name, 0, page(namespace, 1))
    with pytest.raises(StoreInUse, match="another shim"):
        PageStore.create(first.root, 1 << 20)
    first.close()

    second = make_store()
    assert second.shelf(namespace).has(name, 0)


def test_only_stores_that_nobody_holds_are_removed(make_store: MakeStore, shared_memory: Path) -> None:
    make_store(name="heddle-kv-owned")
    engine_only = make_store(name="heddle-kv-engine")
    attached = PageStore.attach(engine_only.root)
    engine_only.close()
    left = make_store(name="heddle-kv-left")
    left.close()
    (shared_memory / "heddle-kv-not-a-store").mkdir()

    assert remove_abandoned(shared_memory, "heddle-kv-") == [left.root]
    attached.close()
    assert remove_abandoned(shared_memory, "heddle-kv-") == [engine_only.root]


def test_a_missing_store_and_one_too_large_say_what_to_do(shared_memory: Path) -> None:
    with pytest.raises(StoreMissing, match="start the shim first"):
        PageStore.attach(shared_memory / "nowhere")
    with pytest.raises(StoreTooLarge, match="shm-size"):
        PageStore.create(shared_memory / "huge", 1 << 60)
