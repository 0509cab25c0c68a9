"""Two real SGLang servers on the CPU, A and B, for most of these tests.

They are started together and once. A module that needs another engine asks for ``one_worker``: B is stopped
then, and started again for whoever asks for it next, so that there are never more than two.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from .workers import Worker, install, stopping, with_like_weights

HERE = Path(__file__).parent
_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real_sglang)


@pytest.fixture(scope="session")
def venv() -> Path:
    return install()


@pytest.fixture(scope="session")
def worker_a(venv: Path, tmp_path_factory: pytest.TempPathFactory, _pair: list[Worker]) -> Worker:
    return _pair[0]


@pytest.fixture(scope="session")
def _pair(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    folder = tmp_path_factory.mktemp("pair")
    # A keeps what an answer of /v1/responses may be gone on from.
    pair = [Worker("a", folder, venv, ("--enable-response-store",)), Worker("b", folder, venv)]
    with stopping(pair[0]), stopping(pair[1]):
        for worker in pair:
            worker.start()
        for worker in pair:
            worker.ready()
        yield pair


@pytest.fixture
def worker_b(_pair: list[Worker]) -> Worker:
    """B, started again if another engine took its place, with the weights that A has."""
    first, worker = _pair
    if worker.process is None or worker.process.poll() is not None:
        worker.start()
        worker.ready()
    with_like_weights(first, worker, f"alike-{next(_numbers)}")
    return worker


@pytest.fixture(scope="module")
def in_place_of_b(
    _pair: list[Worker], venv: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Worker]]:
    """Starts another engine; B is stopped for it."""
    started: list[Worker] = []

    def start(name: str, kind: type[Worker] = Worker, **options: object) -> Worker:
        if _pair[1].process is not None and _pair[1].process.poll() is None:
            _pair[1].stop()
        worker = kind(name, tmp_path_factory.mktemp(name), venv, **options)  # type: ignore[arg-type]
        started.append(worker)
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def name() -> str:
    """A new name for a trajectory or migration."""
    return f"t{next(_numbers)}"


@pytest.fixture
def new_tokens() -> Callable[[int], list[int]]:
    """Token ids that no test had before, the same in each run."""
    random = Random(1000 + next(_numbers))

    def make(length: int) -> list[int]:
        return [random.randrange(3, 2000) for _ in range(length)]

    return make
