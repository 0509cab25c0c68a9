"""`heddle trajectories`, `workers` and `policy` against a running gateway."""

import importlib
import json
import re
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import heddle_gateway
import pytest
from heddle_cli.admin_client import COMMANDS, AdminClient, in_commands
from heddle_cli.exit_codes import CommandFailed, Exit
from heddle_cli.workers import COLUMNS as WORKER_COLUMNS
from heddle_cli.workers import row_of

KEY = ("--key", "sk-admin")


@pytest.fixture
def admin(heddle: Any, gateway: str) -> Any:
    """Runs a command that must succeed; returns its standard output."""

    def run(*arguments: str) -> str:
        done = heddle(*arguments, HEDDLE_GATEWAY=gateway, HEDDLE_ADMIN_KEYS="sk-admin")
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    return run


def test_trajectories_are_listed_as_a_table(admin: Any) -> None:
    lines = admin("trajectories", "ls", "--sort", "last_seen", "--limit", "2").splitlines()
    assert " ".join(lines[0].split()) == "id phase steps output cached worker model group source seen"
    # An id that looks like markup is shown as it is.
    assert lines[1].split()[:5] == ["a/b:c%2F", "dormant", "3", "21", "50%"]
    assert lines[2].split()[:5] == ["[bold]x", "finished", "6", "7", "50%"]
    assert lines[3] == "... more than 2; raise --limit or narrow the list"


def test_a_list_goes_on_over_pages(admin: Any) -> None:
    answer = json.loads(admin("trajectories", "ls", "--limit", "1000", "--json"))
    assert len(answer["items"]) == 123
    assert answer["more"] is False


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--phase", "finished"], ["[bold]x"]),
        (["--group", "g"], ["[bold]x"]),
        (["--prefix", "live/"], ["live/1"]),
        (["--since", "10m"], ["live/1"]),
        (["--since", "10m", "--phase", "finished"], []),
        # A worker that has left, as the ones of an earlier run have.
        (["--worker", "w1", "--group", "g"], ["[bold]x"]),
    ],
)
def test_options_narrow_the_list(admin: Any, options: list[str], found: list[str]) -> None:
    answer = json.loads(admin("trajectories", "ls", "--json", *options))
    assert [item["trajectory_id"] for item in answer["items"]] == found


def test_a_table_that_a_program_reads_has_no_spaces_at_the_ends_of_its_lines(admin: Any) -> None:
    lines = admin("trajectories", "ls").splitlines()
    assert len(lines) > 2
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_trajectory_is_shown_with_its_steps(admin: Any) -> None:
    text = admin("trajectories", "show", "a/b:c%2F")
    assert "steps       3\nrequests    3 (3 done)\n" in text
    assert "tokens      300 prompt (50% cached), 21 output" in text
    last = text.splitlines()[-1].split()
    assert last == ["2", "done", "100", "50%", "7", "0.50", "0.25", "w1", "tool_calls", "bash"]
    detail = json.loads(admin("trajectories", "show", "a/b:c%2F", "--json"))
    assert [step["step"] for step in detail["steps"]["items"]] == [0, 1, 2]


def test_moves_of_kv_are_listed_and_a_refused_one_says_why(admin: Any, heddle: Any, gateway: str) -> None:
    assert admin("migrations", "ls").split()[:4] == ["id", "trajectory", "from", "to"]
    assert json.loads(admin("migrations", "ls", "--trajectory", "live/1", "--json"))["items"] == []
    refused = heddle("migrations", "ask", "live/1", "nowhere", *KEY, HEDDLE_GATEWAY=gateway)
    assert refused.returncode != 0
    assert "no worker 'nowhere'" in refused.stderr


def test_a_live_trajectory_is_finished_once(admin: Any, heddle: Any, gateway: str) -> None:
    assert admin("trajectories", "finish", "live/1") == "live/1 is finished\n"
    again = heddle("trajectories", "finish", "live/1", "--gateway", gateway, *KEY)
    assert again.returncode == 1
    assert "is not live" in again.stderr


def test_workers_are_added_listed_and_drained(admin: Any) -> None:
    # Nothing listens there: the gateway keeps asking.
    [added] = json.loads(admin("workers", "add", "http://127.0.0.1:9", "--degree", "4", "--json"))["items"]
    assert (added["url"], added["degree"], added["state"]) == ("http://127.0.0.1:9", 4, "probing")
    lines = admin("workers", "ls").splitlines()
    assert lines[1].split()[:3] == [str(added["id"]), "http://127.0.0.1:9", "probing"]
    for named in (str(added["id"]), added["name"], added["url"]):
        answer = json.loads(admin("trajectories", "ls", "--json", "--worker", named))
        assert answer["items"] == []
    admin("workers", "drain", "http://127.0.0.1:9/")
    assert json.loads(admin("workers", "ls", "--json")) == {"items": []}


def test_a_worker_that_is_not_there_cannot_be_drained(heddle: Any, gateway: str) -> None:
    done = heddle("workers", "drain", "77", "--gateway", gateway, *KEY)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "heddle: no worker 77; see `heddle workers ls`\n"


def test_kv_that_nobody_knows_of_is_not_said_to_be_none() -> None:
    columns = [name.removeprefix("#") for name in WORKER_COLUMNS]
    worker: dict[str, Any] = dict.fromkeys((*columns, "kv_used", "last_error", "emulated"))
    worker |= {"models": ["m"], "kv_tokens": 0}
    shown = dict(zip(columns, row_of(worker), strict=True))
    assert shown["kv"] is None
    shown = dict(zip(columns, row_of({**worker, "kv_tokens": 1000, "kv_used": 250}), strict=True))
    assert shown["kv"] == "25% of 1000"


@pytest.mark.parametrize("worker", ["77", "http://127.0.0.1:10"])
def test_a_list_is_not_empty_for_a_worker_that_is_not_there(heddle: Any, gateway: str, worker: str) -> None:
    done = heddle("trajectories", "ls", "--worker", worker, "--gateway", gateway, *KEY)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"heddle: no worker {worker}; see `heddle workers ls`\n"


def test_the_policy_is_shown_and_switched(admin: Any) -> None:
    before = json.loads(admin("policy", "show", "--json"))
    after = json.loads(admin("policy", "set", "--order", "fcfs", "move_margin=1.5", "--json"))
    assert after == before | {"order": "fcfs", "move_margin": 1.5}
    assert admin("policy", "show").splitlines()[1].split() == ["order", "fcfs"]
    lines = admin("policy", "set", "--order", "longest_first", "move_margin=1.5").splitlines()
    assert [line.split() for line in lines] == [
        ["setting", "was", "is"],
        ["order", "fcfs", "longest_first"],
        ["move_margin", "1.5", "1.5"],
    ]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("move_margin=abc", 'move_margin: invalid type: string "abc", expected a number'),
        ("priority_levels=1.5", "priority_levels: invalid type: number 1.5, expected a whole number"),
        ("priority_levels=-1", "priority_levels: invalid value: number -1, expected a whole number"),
        ("max_wait_ms=true", "max_wait_ms: invalid type: true, expected a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused_in_plain_words(
    heddle: Any, gateway: str, setting: str, said: str
) -> None:
    done = heddle("policy", "set", setting, "--gateway", gateway, *KEY)
    assert (done.returncode, done.stderr) == (1, f"heddle: {said}\n")


def test_a_rollout_is_announced_shown_and_finished(
    admin: Any, heddle: Any, gateway: str, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "swe-47", "tokens": 3100}\n\n{}\n')
    options = ("--prompts", str(prompts), "--group-size", "2", "--no-plan", "--json")
    created = json.loads(admin("rollouts", "create", *options))
    assert [one["group_id"] for one in created["trajectories"]][:2] == ["swe-47", "swe-47"]
    rollout = created["rollout"]["id"]
    assert "4: 0 finished, 0 running, 4 to come" in admin("rollouts", "show", rollout)
    assert "4: 4 finished, 0 running, 0 to come" in admin("rollouts", "finish", rollout)
    none = heddle("rollouts", "finish", "ro-none", "--gateway", gateway, *KEY)
    assert (none.returncode, none.stderr.splitlines()) == (
        1,
        ["heddle: no rollout 'ro-none' is kept", "List them with `heddle rollouts ls`."],
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1}', "line 1: a: Extra inputs are not permitted"),
        ('{"id": "x"}\n{"tokens": -1}', "line 2: tokens: Input should be greater than or equal to 0"),
        ("[1]", "line 1: the line: Input should be a valid dictionary"),
        ("{", "line 1: '{' is not JSON: "),
        ("", "there is no prompt in it"),
    ],
)
def test_a_prompt_that_cannot_be_is_named_by_file_and_line(
    heddle: Any, tmp_path: Path, text: str, said: str
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(text)
    done = heddle("rollouts", "create", "--prompts", str(prompts))
    assert done.returncode == 2
    assert done.stderr.startswith(f"heddle: {prompts}: {said}")


def test_who_types_commands_is_told_of_commands() -> None:
    """Every advice of the gateway that names a route for operators has a command for it."""
    source = Path(heddle_gateway.__file__).parent
    advice = [
        found
        for file in source.rglob("*.py")
        for found in re.findall(r'\bfix="([^"]*/admin/v1[^"]*)"', file.read_text())
    ]
    assert len(advice) > 5
    untold = [fix for fix in advice if "/admin/v1" in in_commands(fix)]
    assert untold == ["Requests are served meanwhile; look at history in GET /admin/v1/stats."]
    for _, command in COMMANDS:
        group, name, *_ = command.split()[1:]
        app = importlib.import_module(f"heddle_cli.{group}").app
        assert name in {one.name for one in app.registered_commands}


def test_a_policy_that_cannot_be_is_explained(heddle: Any, gateway: str) -> None:
    done = heddle("policy", "set", "--placement", "anywhere", "--gateway", gateway, *KEY)
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert said[0] == "heddle: placement: unknown variant `anywhere`"
    assert said[1].startswith("allowed: ")
    assert "by_rank" in said[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["trajectories", "ls", "--phase", "sleeping"],
        ["trajectories", "ls", "--since", "yesterday"],
        ["trajectories", "show"],
        ["policy", "set"],
        ["policy", "set", "fcfs"],
        ["nonsense"],
        ["workers", "ls", "--colour"],
    ],
)
def test_wrong_usage_ends_with_2(heddle: Any, gateway: str, arguments: list[str]) -> None:
    done = heddle(*arguments, HEDDLE_GATEWAY=gateway)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""


def test_no_gateway_ends_with_3_and_says_what_to_do(heddle: Any) -> None:
    done = heddle("workers", "ls", "--gateway", "http://127.0.0.1:9")
    assert done.returncode == 3
    assert done.stderr.startswith("heddle: cannot reach a gateway at http://127.0.0.1:9")
    assert "heddle up" in done.stderr


def test_a_gateway_that_does_not_answer_in_time_is_not_called_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CommandFailed) as failed:
            AdminClient(url).post("/rollouts", {}, timeout_s=0.1, look="heddle rollouts ls")
    assert failed.value.exit_code == Exit.FAILED
    assert "gave no answer within 0.1 s" in str(failed.value)
    assert "It may have been done all the same: `heddle rollouts ls`." in str(failed.value)


@pytest.mark.parametrize(("kept", "warns"), [("local", True), ("redis", False)])
def test_a_command_that_is_not_kept_is_said_to_be_done_and_not_kept(
    capsys: pytest.CaptureFixture[str], kept: str, warns: bool
) -> None:
    class Leader(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            self.send_response(202)
            self.send_header("x-heddle-kept", kept)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *said: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Leader) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        assert AdminClient(f"http://127.0.0.1:{server.server_port}").delete("/workers/3") == {}
        thread.join()
    assert ("cannot reach its Redis" in capsys.readouterr().err) is warns


def test_a_missing_key_is_said(heddle: Any, gateway: str) -> None:
    for key in ([], ["--key", "sk-wrong"]):
        done = heddle("workers", "ls", "--gateway", gateway, *key)
        assert done.returncode == 1
        assert "--key" in done.stderr


@pytest.mark.parametrize("keys", ["sk-admin,sk-other", '["sk-admin", "sk-other"]'])
def test_the_gateway_s_own_list_of_keys_serves_the_client(heddle: Any, gateway: str, keys: str) -> None:
    assert heddle("policy", "show", HEDDLE_GATEWAY=gateway, HEDDLE_ADMIN_KEYS=keys).returncode == 0


def test_an_unknown_trajectory_ends_with_1(heddle: Any, gateway: str) -> None:
    done = heddle("trajectories", "show", "nobody/at all", "--gateway", gateway, *KEY)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no trajectory 'nobody/at%20all'" in done.stderr, "as the list would show it"


def test_an_agents_base_url_is_no_gateway_and_the_error_says_what_is(heddle: Any, gateway: str) -> None:
    done = heddle("workers", "ls", "--gateway", f"{gateway}/v1", "--key", "sk-admin")
    assert done.returncode == 1
    assert f"{gateway}/v1/admin/v1/workers" in done.stderr
    assert "without the /v1 of agents" in done.stderr
