"""`heddle plan` and `heddle rollouts` against a gateway with a planner."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from heddle_gateway.app import create_app
from heddle_gateway.asgi.server_protocol import GatewayProtocol
from heddle_gateway.settings import load_settings

WAIT_S = 60.0

Run = Callable[..., str]


@contextmanager
def running(*arguments: str) -> Iterator[dict[str, Any]]:
    """A part of Heddle as a process, and what it says when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "heddle_cli", *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a gateway with two emulated workers and a planner; plans are made by hand only."""
    database = tmp_path_factory.mktemp("gateway") / "history.db"
    with (
        running("planner", "--port", "0") as planner,
        running("emulate", "--tp", "2,1", "--base-port", "0", "--speed", "100", "--model", "m") as emulated,
    ):
        settings = load_settings(
            database=str(database), workers=emulated["workers"], planner=planner["planner"], auto_plan=False
        )
        listening = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(create_app(settings), http=GatewayProtocol, lifespan="on", log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False) as http:
                while http.get("/ready").json()["workers"]["active"] < 2:
                    assert thread.is_alive()
                for number in range(4):
                    say(http, f"t{number}")
            yield url
        finally:
            server.should_exit = True
            thread.join()


def say(http: httpx.Client, trajectory: str) -> None:
    body = {
        "model": "default",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": f"I am {trajectory}"}],
    }
    headers = {"x-heddle-trajectory-id": trajectory}
    http.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()


@pytest.fixture
def admin(heddle: Any, gateway: str) -> Run:
    """Runs a command that must succeed; returns its standard output."""

    def run(*arguments: str) -> str:
        done = heddle(*arguments, HEDDLE_GATEWAY=gateway)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    return run


def test_a_plan_is_computed_activated_shown_and_explained(admin: Run, heddle: Any, gateway: str) -> None:
    plan = json.loads(admin("plan", "compute", "--json"))
    assert (plan["trajectories"], plan["live"], plan["state"]) == (4, True, "candidate")
    version = str(plan["version"])
    said = admin("plan", "activate", version)
    assert f"plan {version} is in force" in said
    assert "MP degree 2" in said
    shown = admin("plan", "show")
    assert f"version      {version}" in shown
    assert "limited by" in shown
    assert "least_load" in shown
    listed = admin("plan", "show", "--all")
    assert "planner: ready" in listed
    assert listed.split()[0] == "version"
    assert "more than" not in listed
    newest = str(json.loads(admin("plan", "compute", "--json"))["version"])
    listed = admin("plan", "show", "--all", "--limit", "1").splitlines()
    assert listed[1].split()[0] == newest
    assert listed[2] == "... more than 1; raise --limit"
    both = json.loads(admin("plan", "show", "--all", "--limit", "2", "--json"))
    assert [str(plan["version"]) for plan in both["items"]] == [newest, version]
    assert (both["more"], str(both["current"]), both["planner"]) == (False, version, "ready")
    told = admin("plan", "explain", "--trajectories", "2")
    assert told.startswith(f"Plan {version}. ")
    assert "4 trajectories on 2 workers" in told
    assert "- makespan: The time until the last trajectory has ended." in told
    missing = heddle("plan", "activate", "4711", HEDDLE_GATEWAY=gateway)
    assert missing.returncode == 1
    assert "no plan of version 4711" in missing.stderr


def test_lengths_of_a_file_are_planned_by_the_gateways_planner(admin: Run, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("52000\n31000\n8000\n900\n")
    asked = ["plan", "compute", "--lengths", str(lengths), "--gpus", "8", "--degrees", "1,2,4"]
    plan = json.loads(admin(*asked, "--dry-run", "--json"))
    assert plan["version"] is None
    assert sorted(index for members in plan["members"] for index in members) == [0, 1, 2, 3]
    assert "none (dry run)" in admin(*asked, "--dry-run")


def test_the_planners_own_command_is_there_without_a_gateway(heddle: Any, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("100\n5000\n")
    asked = ("--lengths", str(lengths), "--gpus", "2", "--profile", "qwen3-8b-h100", "--json")
    first, second = (heddle("plan", *words, *asked) for words in ((), ("lengths",)))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert json.loads(first.stdout)["workers"] == json.loads(second.stdout)["workers"]


def test_wrong_usage_is_said(heddle: Any, gateway: str, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("many\n")
    nan = tmp_path / "nan.txt"
    nan.write_text("100\n\nnan\n")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"length": 1}\n{"length": NaN}\n')
    for arguments, said in (
        (("plan", "compute", "--lengths", str(words)), "line 1: 'many' is no number of tokens"),
        (("plan", "compute", "--lengths", str(nan)), "line 3: 'nan' is no number of tokens"),
        (("rollouts", "create", "--lengths", str(nan)), "line 3: 'nan' is no number of tokens"),
        (("rollouts", "create", "--prompts", str(bad)), "line 2: '{\"length\": NaN}' is not JSON"),
        (("policy", "set", "move_margin=NaN"), "NaN is no number"),
        (("policy", "set", "move_margin=[-Infinity]"), "-Infinity is no number"),
        (("plan", "compute", "--degrees", "1;2"), "no list such as 1,2,4"),
        (("plan", "compute", "--dry-run", "--activate"), "cannot be activated"),
        (("rollouts", "create"), "give one of --lengths, --prompts and --count"),
        (("rollouts", "create", "--lengths", str(words)), "is no number of tokens"),
        (("rollouts", "create", "--prompts", str(words)), "is not JSON"),
    ):
        done = heddle(*arguments, HEDDLE_GATEWAY=gateway)
        assert done.returncode == 2, arguments
        assert said in done.stderr.replace("\n", " ").replace("│", " "), arguments


def test_a_rollout_is_created_listed_and_watched_to_its_end(admin: Run, gateway: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "easy", "tokens": 20, "length": 30}\n{"id": "hard", "length": 9000}\n')
    created = json.loads(
        admin("rollouts", "create", "--prompts", str(prompts), "--group-size", "2", "--name", "e1", "--json")
    )
    rollout = created["rollout"]["id"]
    assert len(created["trajectories"]) == 4
    assert created["rollout"]["plan_version"] is not None
    assert "4: 0 finished, 0 running, 4 to come" in admin("rollouts", "show")
    assert rollout in admin("rollouts", "ls")
    with httpx.Client(base_url=gateway, timeout=WAIT_S, trust_env=False) as http:
        for member in created["trajectories"]:
            say(http, member["trajectory_id"])
        running = json.loads(admin("rollouts", "show", rollout, "--json"))
        assert (running["state"], running["running"]) == ("running", 4)
        http.post(f"/admin/v1/rollouts/{rollout}/finish").raise_for_status()
    watched = admin("rollouts", "watch", rollout)
    assert "finished" in watched
    lines = admin("rollouts", "watch", rollout, "--json").splitlines()
    assert json.loads(lines[-1])["state"] == "finished"


def test_a_watched_rollout_ends_by_itself_and_says_what_told_so(admin: Run, gateway: str) -> None:
    created = json.loads(admin("rollouts", "create", "--count", "2", "--no-plan", "--json"))
    with httpx.Client(base_url=gateway, timeout=WAIT_S, trust_env=False) as http:
        for member in created["trajectories"]:
            say(http, member["trajectory_id"])
    before = json.loads(admin("policy", "show", "--json"))["dormant_after_ms"]
    admin("policy", "set", "dormant_after_ms=1")
    try:
        watched = admin("rollouts", "watch", created["rollout"]["id"])
    finally:
        admin("policy", "set", f"dormant_after_ms={before}")
    assert "finished: 2 have answered without a tool call" in watched


def test_a_batch_of_which_nothing_is_known_can_be_announced(admin: Run) -> None:
    said = admin("rollouts", "create", "--count", "12", "--no-plan")
    assert "... 4 more; --json has all" in said
    assert "X-Heddle-Trajectory-Id" in said
