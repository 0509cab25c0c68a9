"""Each convention by which agents name a trajectory, and the order among them."""

import pytest
from heddle_gateway.identity import InvalidId, TrajectoryBook
from heddle_gateway.identity.conventions import BODIES, HARNESSES, SESSIONS, TRAJECTORIES, Place


def tagged(caller, headers=None, body=None, **how):
    return caller.book.resolve(caller.facts({"messages": [], **(body or {})}, headers=headers, **how))


def nested(path: str, value: object) -> dict:
    """{"a": {"b": value}} for "a.b"."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


HEADER_ROWS = [
    (row.source, name)
    for row in (*TRAJECTORIES, *HARNESSES, *SESSIONS)
    if row.place is Place.HEADER
    for name in row.root
]
BODY_ROWS = [
    (row.source, path)
    for row in (*TRAJECTORIES, *BODIES)
    if row.place is Place.BODY and row.source != "body-user-session"
    for path in row.root
]


@pytest.mark.parametrize(("source", "name"), HEADER_ROWS)
def test_a_header_names_the_trajectory(caller, source, name) -> None:
    who = tagged(caller, {name: "run-7"})
    assert (who.trajectory_id, who.source) == ("run-7", source)


@pytest.mark.parametrize(("source", "path"), BODY_ROWS)
def test_a_body_field_names_the_trajectory(caller, source, path) -> None:
    who = tagged(caller, body=nested(path, "run-7"))
    assert (who.trajectory_id, who.source) == ("run-7", source)


# From the strongest on: each as (source, headers, body, path, query).
LADDER = [
    ("header", {"x-heddle-trajectory-id": "a"}, {}, None),
    ("url", {}, {}, "/t/b/v1/chat/completions"),
    ("key", {"authorization": "Bearer sk-heddle-c"}, {}, None),
    ("dynamo", {"x-dynamo-session-id": "e"}, {}, None),
    ("agentic-context", {}, nested("vllm_xargs.agentic_context", {"program_id": "f"}), None),
    ("program-id", {}, {"program_id": "g"}, None),
    ("claude-code", {"x-claude-code-session-id": "h"}, {}, None),
    ("codex-thread", {"thread-id": "i"}, {}, None),
    ("codex", {"session-id": "j"}, {}, None),
    ("session-id", {"x-session-id": "k"}, {}, None),
    ("routing-key", {"x-smg-routing-key": "l"}, {}, None),
    ("litellm", {"x-litellm-session-id": "m"}, {}, None),
    ("body-metadata", {}, nested("metadata.session_id", "n"), None),
    ("body-session", {}, {"session_id": "o"}, None),
    ("body-cache-key", {}, {"prompt_cache_key": "p"}, None),
]


@pytest.mark.parametrize("at", range(len(LADDER) - 1))
def test_the_stronger_convention_wins(caller, at) -> None:
    for lower in range(at + 1, len(LADDER)):
        headers, body, path = {}, {}, None
        for _, some_headers, some_body, some_path in (LADDER[lower], LADDER[at]):
            headers |= some_headers
            body |= some_body
            path = some_path or path
        assert tagged(caller, headers, body, path=path).source == LADDER[at][0]


def test_our_key_beats_a_foreign_url_and_a_foreign_url_beats_a_foreign_key(caller) -> None:
    path = "/sessions/s/v1/chat/completions"
    assert tagged(caller, {"authorization": "Bearer sk-heddle-c"}, path=path).source == "key"
    assert tagged(caller, {"authorization": "Bearer sk-sess-c"}, path=path).source == "url-sessions"
    assert tagged(caller, {"authorization": "Bearer sk-sess-c"}).source == "key-session"


def test_a_query_parameter_names_the_trajectory_after_headers(caller) -> None:
    assert tagged(caller, query={"session_id": "q"}).trajectory_id == "q"
    assert tagged(caller, {"x-session-id": "k"}, query={"session_id": "q"}).trajectory_id == "k"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"x-request-id": "r"}, {}),
        ({"x-correlation-id": "r"}, {}),
        ({"x-trace-id": "r"}, {}),
        ({"x-client-request-id": "r"}, {}),
        ({"x-litellm-trace-id": "r"}, {}),
        ({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, {}),
        ({"x-user-id": "u"}, {}),
        ({"x-heddle-internal-trajectory": "x"}, {}),
        ({}, {"user": "u"}),
        ({}, {"user_id": "u"}),
        ({}, {"cache_salt": "s"}),
        ({}, {"litellm_trace_id": "t"}),
        ({}, nested("metadata.user_id", "u")),
        ({"authorization": "Bearer sk-proj-secret"}, {}),
    ],
)
def test_ids_of_requests_and_of_persons_name_no_trajectory(caller, chat, headers, body) -> None:
    who = tagged(caller, headers, {**body, "messages": chat.opening()})
    assert who.source == "history-new"


def test_an_operator_may_name_a_header_of_its_own(caller, chat) -> None:
    book = TrajectoryBook(session_headers=["X-Correlation-ID"])
    headers = {"x-correlation-id": "c", "x-session-id": "s"}
    who = book.resolve(caller.facts({"messages": chat.opening()}, headers=headers))
    assert (who.trajectory_id, who.source) == ("c", "operator")


def test_claude_codes_user_id_ends_in_its_session(caller) -> None:
    value = "user_1f2e_account_9a8b_session_0c6d5f7e-1b2a-4c3d-8e9f-001122334455"
    who = tagged(caller, body=nested("metadata.user_id", value))
    assert (who.trajectory_id, who.source) == ("0c6d5f7e-1b2a-4c3d-8e9f-001122334455", "body-user-session")


def test_a_sub_agent_of_claude_code_is_a_child_of_its_session(caller) -> None:
    session = {"x-claude-code-session-id": "s"}
    root = tagged(caller, session)
    child = tagged(caller, {**session, "x-claude-code-agent-id": "a"})
    grandchild = tagged(
        caller, {**session, "x-claude-code-agent-id": "b", "x-claude-code-parent-agent-id": "a"}
    )
    assert (root.trajectory_id, root.parent_id) == ("s", None)
    assert (child.trajectory_id, child.parent_id) == ("s/a", "s")
    assert (grandchild.trajectory_id, grandchild.parent_id) == ("s/b", "s/a")


def test_a_codex_thread_comes_before_its_session(caller) -> None:
    headers = {"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "p"}
    who = tagged(caller, headers)
    assert (who.trajectory_id, who.parent_id) == ("t", "p")


def test_an_agentic_context_gives_program_agent_parent_and_group(caller) -> None:
    context = {"program_id": "p", "agent_id": "a", "parent_agent_id": "b", "task_id": "t"}
    who = tagged(caller, body=nested("vllm_xargs.agentic_context", context))
    assert (who.trajectory_id, who.parent_id, who.group_id) == ("p/a", "p/b", "t")


def test_dynamos_final_flag_ends_the_trajectory(caller) -> None:
    headers = {"x-dynamo-session-id": "s", "x-dynamo-parent-session-id": "p"}
    assert tagged(caller, headers).final is False
    who = tagged(caller, {**headers, "x-dynamo-session-final": "True"})
    assert (who.final, who.parent_id) == (True, "p")


def test_fields_of_different_conventions_are_not_mixed(caller) -> None:
    headers = {
        "x-dynamo-session-id": "d",
        "x-session-id": "s",
        "x-parent-session-id": "p",
        "x-instance-id": "i",
    }
    who = tagged(caller, headers, nested("vllm_xargs.agentic_context", {"parent_id": "q", "task_id": "t"}))
    assert (who.trajectory_id, who.parent_id) == ("d", None)
    assert who.group_id not in ("i", "t")


@pytest.mark.parametrize("prefix", ["x-heddle-", "x-heddle-trajectory-"])
def test_our_own_fields_go_with_any_convention(caller, prefix) -> None:
    own = {f"{prefix}group": "g", f"{prefix}sample": "3", f"{prefix}parent": "p", f"{prefix}final": "1"}
    who = tagged(caller, {"x-session-id": "s", **own})
    assert (who.trajectory_id, who.source) == ("s", "session-id")
    assert (who.group_id, who.sample, who.parent_id, who.final) == ("g", 3, "p", True)


def test_what_a_trajectory_said_of_itself_once_stays(caller, chat) -> None:
    headers = {"x-session-id": "s"}
    caller.ask(chat.opening(), headers={**headers, "x-heddle-group": "g", "x-heddle-sample": "3"})
    later = caller.ask([*chat.opening(), chat.user("more")], headers=headers)
    assert (later.group_id, later.sample) == ("g", 3)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-heddle-trajectory-id", "a\x1bb"),
        ("x-heddle-trajectory-id", "a" * 257),
        ("x-heddle-group", "a\x00"),
        ("x-heddle-sample", "three"),
        ("x-heddle-sample", "-1"),
        ("x-heddle-parent", "a\nb"),
    ],
)
def test_an_unusable_value_of_ours_is_refused_by_name(caller, header, value) -> None:
    with pytest.raises(InvalidId) as caught:
        tagged(caller, {header: value})
    assert (caught.value.status, caught.value.param) == (400, header)
    assert header in caught.value.message


def test_an_unusable_id_of_a_foreign_convention_never_fails_a_request(caller) -> None:
    who = tagged(caller, {"x-session-id": "a\x1bb", "x-smg-routing-key": "key"})
    assert who.source == "routing-key"
    assert tagged(caller, {"x-session-id": "a" * 300}).source == "anonymous"


def test_an_empty_id_counts_as_none(caller) -> None:
    assert tagged(caller, {"x-heddle-trajectory-id": " ", "x-session-id": "s"}).trajectory_id == "s"


def test_a_child_id_beyond_the_limit_keeps_its_root(caller) -> None:
    headers = {"x-claude-code-session-id": "s" * 200, "x-claude-code-agent-id": "a" * 200}
    who = tagged(caller, headers)
    assert len(who.trajectory_id) <= 256
    assert who.trajectory_id.startswith("s" * 200 + "/")
    other = tagged(caller, {**headers, "x-claude-code-agent-id": "b" * 200})
    assert other.trajectory_id != who.trajectory_id
