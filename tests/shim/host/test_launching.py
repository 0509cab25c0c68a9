"""`heddle shim` as a host launches it, with a small program in SGLang's place."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from heddle_shim.host.gpus import named
from heddle_shim.host.launching import Running, ShimLauncher

WAIT_S = 60.0

ENGINE = """
import json, os, pathlib, sys, time
said = {"pid": os.getpid(), "parent": os.getppid(), "arguments": sys.argv[1:],
        "visible": os.environ["CUDA_VISIBLE_DEVICES"]}
notes = pathlib.Path(__file__).with_name("notes")
notes.with_suffix(".new").write_text(json.dumps(said))
notes.with_suffix(".new").rename(notes)
time.sleep(600)
"""


def engine_command(folder: Path) -> str:
    program = folder / "engine.py"
    program.write_text(ENGINE)
    return f"{sys.executable} {program}"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  what is waited for is another process
            await asyncio.sleep(0.02)


async def noted(folder: Path) -> Any:
    """What the engine said of itself."""
    await until((folder / "notes").exists)
    return json.loads((folder / "notes").read_text())


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@asynccontextmanager
async def launched(folder: Path, options: str = "--model-path /m", **more: Any) -> AsyncIterator[Running]:
    passed = ["--no-kv", "--advertise", "node1", "--engine-command", engine_command(folder)]
    launcher = ShimLauncher(
        options,
        passed,
        listen=more.get("listen", "127.0.0.1"),
        gateway_key=more.get("gateway_key"),
        base_port=30000,
        log_folder=folder,
        start_timeout_s=WAIT_S,
        devices=more.get("devices", "01234567"),
    )
    running = await launcher.launch(2, (4, 5))
    try:
        yield running
    finally:
        await running.stop()


async def test_the_engine_listens_where_the_host_does_and_goes_by_the_name_that_gateways_know(
    tmp_path: Path,
) -> None:
    async with launched(tmp_path, listen="0.0.0.0") as running:
        arguments = (await noted(tmp_path))["arguments"]
        assert arguments[arguments.index("--host") + 1] == "0.0.0.0"
        assert arguments[arguments.index("--tp") + 1] == "2"
        assert running.url == "http://node1:30004"


async def test_an_engine_gets_the_gpus_that_the_host_was_given(tmp_path: Path) -> None:
    """And not those of the same numbers on the machine, which are somebody else's."""
    async with launched(tmp_path, devices=named(6, "7,6,5,4,GPU-8932f937,3")) as running:
        assert (await noted(tmp_path))["visible"] == "GPU-8932f937,3"
        assert running.url == "http://node1:30004"


async def test_an_address_that_the_options_give_stays(tmp_path: Path) -> None:
    async with launched(tmp_path, "--model-path /m --host 10.1.2.3", listen="0.0.0.0"):
        arguments = (await noted(tmp_path))["arguments"]
        assert arguments.count("--host") == 1
        assert arguments[arguments.index("--host") + 1] == "10.1.2.3"


async def test_the_gateways_key_reaches_the_shim_and_no_command_line(tmp_path: Path) -> None:
    async with launched(tmp_path, gateway_key="only-here"):
        shim = Path("/proc") / str((await noted(tmp_path))["parent"])
        assert b"HEDDLE_ADMIN_KEYS=only-here" in (shim / "environ").read_bytes().split(b"\0")
        assert b"only-here" not in (shim / "cmdline").read_bytes()


HOST = """
import asyncio, pathlib, sys
from heddle_shim.host.launching import ShimLauncher

async def main(folder, command):
    passed = ["--no-kv", "--engine-command", command]
    launcher = ShimLauncher("--model-path /m", passed, listen="127.0.0.1", gateway_key=None, base_port=30000,
                            log_folder=pathlib.Path(folder), start_timeout_s=60.0, devices="0")
    await launcher.launch(1, (0,))
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_host_that_is_killed_leaves_no_engine_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOST, str(tmp_path), engine_command(tmp_path)]
    host = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE)
    assert host.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert await host.stdout.readline() == b"up\n"
    engine = await noted(tmp_path)
    os.kill(host.pid, signal.SIGKILL)
    await host.wait()
    await until(lambda: not runs(engine["parent"]) and not runs(engine["pid"]))
