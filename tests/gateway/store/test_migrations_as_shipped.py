"""The migrations as an installed gateway and as the author of the next one meet them."""

import asyncio
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from heddle_gateway.store import schema
from heddle_gateway.store.engine import open_engine

ROOT = Path(__file__).parents[3]


def run(*arguments: str | Path, cwd: Path = ROOT, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def _upgraded(location: str) -> None:
    engine = open_engine(location)
    await schema.upgrade(engine)
    await engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        location: str = request.getfixturevalue("postgresql").new_database()
        return location
    return str(tmp_path / "history.db")


def alembic(database: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run("-m", "alembic", "-c", "migrations/alembic.ini", "-x", f"url={database}", *arguments)


def test_alembic_check_finds_nothing_to_add(database: str) -> None:
    asyncio.run(_upgraded(database))
    done = alembic(database, "check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_alembic_goes_up_and_down_by_itself(database: str) -> None:
    for step in (("upgrade", "head"), ("downgrade", "base"), ("upgrade", "head")):
        done = alembic(database, *step)
        assert done.returncode == 0, done.stderr
    assert schema.newest_revision() in alembic(database, "current").stdout


UPGRADE = """
import asyncio, sys
import heddle_gateway
from heddle_gateway.store import schema
from heddle_gateway.store.engine import open_engine

async def main():
    engine = open_engine(sys.argv[1])
    await schema.upgrade(engine)
    print(heddle_gateway.__file__, await schema.revision_of(engine))
    await engine.dispose()

asyncio.run(main())
"""


@pytest.mark.parametrize("by_way_of", ["the folder", "a source archive"])
def test_a_wheel_brings_its_migrations(tmp_path: Path, by_way_of: str) -> None:
    source = ROOT / "gateway"
    if by_way_of == "a source archive":
        done = run("-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=source)
        assert done.returncode == 0, done.stderr
        [archive] = tmp_path.glob("*.tar.gz")
        subprocess.run(["tar", "xzf", archive, "-C", tmp_path], check=True)
        source = tmp_path / archive.name.removesuffix(".tar.gz")
    done = run("-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=source)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    installed = tmp_path / "site-packages"
    zipfile.ZipFile(wheel).extractall(installed)
    done = run("-c", UPGRADE, tmp_path / "history.db", cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        str(installed / "heddle_gateway" / "__init__.py"),
        schema.newest_revision(),
    ]
