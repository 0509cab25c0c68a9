"""The peer's own virtual environment."""

import sys
from pathlib import Path

import pytest
from heddle_cli.bench import peer_router
from heddle_cli.bench.errors import BenchError


def test_the_cache_is_named_by_version_and_python(tmp_path: Path) -> None:
    folder = peer_router.cache_folder({"XDG_CACHE_HOME": str(tmp_path)})
    assert folder.parent == tmp_path / "heddle/bench"
    assert peer_router.VERSION in folder.name
    assert f"py{sys.version_info.major}{sys.version_info.minor}" in folder.name
    assert peer_router.cache_folder({"HOME": "/home/a"}).parent == Path("/home/a/.cache/heddle/bench")


def test_a_complete_installation_is_used_as_it_is(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    folder = peer_router.cache_folder(environ)
    folder.mkdir(parents=True)
    (folder / ".complete").touch()
    assert peer_router.ensure_installed(environ) == folder / "bin/python"


@pytest.mark.system
def test_an_index_out_of_reach_is_reported_and_leaves_nothing_that_looks_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    with pytest.raises(BenchError, match=f"{peer_router.NAME} {peer_router.VERSION} could not be installed"):
        peer_router.ensure_installed(environ)
    assert not (peer_router.cache_folder(environ) / ".complete").exists()


def test_both_gateways_write_no_line_per_request() -> None:
    command = peer_router.command(Path("python"), port=1, metrics_port=2, worker_url="http://127.0.0.1:3")
    assert command[command.index("--log-level") + 1] == "warn"
    assert command[command.index("--policy") + 1] == "cache_aware"
