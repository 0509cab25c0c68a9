"""Every way in which agents and frameworks name a trajectory today, as one table in order of precedence.

A row is one convention. The first row that yields an id decides, and its other fields (parent, group, end)
come from the same convention: schemas are not mixed. Children come before roots. Never rows here, since
they change with every request or are one per person: request ids, trace ids, ``user``; an operator may name
such a header as a ``session_headers`` entry.

Sources: Dynamo lib/llm/src/protocols/agents.rs and docs/agents, vllm-router identity.rs, llm-d
agentidentity/agent_identity.go, smg header_utils.rs, OpenHands, SkyRL, verifiers, Polar, Dressage,
uni-agent, LiteLLM, ThunderAgent app.py.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from heddle_gateway.identity.facts import RequestFacts
from heddle_gateway.identity.ids import InvalidId, joined_id, kept_id
from heddle_gateway.identity.keys import key_of, named_trajectory
from heddle_gateway.identity.urls import TaggedPath


class Place(StrEnum):
    """Where a convention puts its fields."""

    HEADER = "header"
    QUERY = "query"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Tag:
    """What a request says of itself. ``source``: the convention."""

    source: str
    trajectory_id: str
    group_id: str | None = None
    parent_id: str | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Convention:
    """One row. Of each field the first name present counts.

    ``agent``: a sub-agent inside ``root``; the trajectory is then root/agent, its parent
    root/``parent_agent`` or the root itself. ``read``: takes the id out of a longer value.
    """

    source: str
    place: Place
    root: tuple[str, ...]
    agent: tuple[str, ...] = ()
    parent: tuple[str, ...] = ()
    parent_agent: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    final: tuple[str, ...] = ()
    read: Callable[[str], str] = str


def _session_tail(user_id: str) -> str:
    """Claude Code: ``user_<hash>_account_<id>_session_<uuid>``."""
    match = _SESSION_TAIL.search(user_id)
    return match.group(1) if match else ""


_SESSION_TAIL: Final = re.compile(r"_session_([A-Za-z0-9-]+)$")
_CONTEXT: Final = "vllm_xargs.agentic_context."
_HEADER, _QUERY, _BODY = Place.HEADER, Place.QUERY, Place.BODY

# Explicit trajectory semantics.
TRAJECTORIES: Final = (
    Convention(
        "dynamo",
        _HEADER,
        ("x-dynamo-session-id", "x-dynamo-trajectory-id"),
        parent=("x-dynamo-parent-session-id", "x-dynamo-parent-trajectory-id"),
        final=("x-dynamo-session-final", "x-dynamo-trajectory-final"),
    ),
    Convention(
        "agentic-context",
        _BODY,
        (_CONTEXT + "program_id", _CONTEXT + "session_id"),
        agent=(_CONTEXT + "agent_id",),
        parent=(_CONTEXT + "parent_program_id", _CONTEXT + "parent_id"),
        parent_agent=(_CONTEXT + "parent_agent_id",),
        group=(_CONTEXT + "task_id",),
    ),
    Convention(
        "nvext",
        _BODY,
        ("nvext.agent_context.program_id",),
        parent=("nvext.agent_context.parent_program_id",),
    ),
    Convention("program-id", _BODY, ("program_id", "extra_body.program_id")),
    Convention("uni-agent", _BODY, ("kv_transfer_params.uni_agent.trajectory_id",)),
    Convention(
        "agent-hint",
        _BODY,
        ("agent_hint.session_id", "vllm_xargs.agent_hint.session_id"),
        parent=("agent_hint.parent_session_id", "vllm_xargs.agent_hint.parent_session_id"),
    ),
)

# Harnesses that tag by themselves.
HARNESSES: Final = (
    Convention(
        "claude-code",
        _HEADER,
        ("x-claude-code-session-id",),
        agent=("x-claude-code-agent-id",),
        parent_agent=("x-claude-code-parent-agent-id",),
    ),
    Convention("codex-thread", _HEADER, ("thread-id",), parent=("x-codex-parent-thread-id",)),
    Convention("codex", _HEADER, ("session-id", "session_id")),
    Convention(
        "opencode", _HEADER, ("x-opencode-session", "x-session-affinity"), parent=("x-parent-session-id",)
    ),
    Convention("amp", _HEADER, ("x-amp-thread-id",)),
    Convention("grok", _HEADER, ("x-grok-conv-id",)),
    Convention("qwen-code", _HEADER, ("x-qwen-code-session-id",)),
)

# Generic sessions of routers and frameworks.
SESSIONS: Final = (
    Convention(
        "session-id",
        _HEADER,
        ("x-session-id", "x_session_id", "proxy-x-session-id", "proxy_x_session_id"),
        parent=("x-parent-session-id",),
        group=("x-instance-id",),
    ),
    Convention("routing-key", _HEADER, ("x-smg-routing-key",)),
    Convention("litellm", _HEADER, ("x-litellm-session-id",)),
    Convention("bifrost", _HEADER, ("x-bf-session-id",)),
    Convention("envoy", _HEADER, ("agent-session-id",)),
    Convention("helicone", _HEADER, ("helicone-session-id",)),
    Convention("conversation-id", _HEADER, ("x-conversation-id",)),
    Convention("query", _QUERY, ("session_id",)),
)

# Body fields that name a session beside other uses.
BODIES: Final = (
    Convention("body-metadata", _BODY, ("metadata.trajectory_id", "metadata.session_id")),
    Convention("body-litellm", _BODY, ("litellm_session_id", "litellm_metadata.session_id")),
    Convention("body-session", _BODY, ("session_id", "extra_body.session_id", "_proxy_session_id")),
    Convention("body-session-params", _BODY, ("session_params.session_id", "session_params.id")),
    Convention("body-cache-key", _BODY, ("prompt_cache_key",)),
    Convention("body-user-session", _BODY, ("metadata.user_id",), read=_session_tail),
    Convention("body-conversation", _BODY, ("conversation", "conversation.id")),
)

OWN_ID: Final = "x-heddle-trajectory-id"


class Conventions:
    """The table, with an operator's own headers before the generic ones."""

    def __init__(self, session_headers: Sequence[str] = ()) -> None:
        own = tuple(Convention("operator", _HEADER, (name.lower(),)) for name in session_headers)
        self._rows = (*TRAJECTORIES, *HARNESSES, *own, *SESSIONS, *BODIES)
        # Which rows a name can make fire, so that a request costs what it carries and not what the table
        # holds.
        self._at: dict[Place, dict[str, list[int]]] = {place: {} for place in Place}
        for at, row in enumerate(self._rows):
            for name in row.root + row.agent:
                self._at[row.place].setdefault(name, []).append(at)
        # Nearly every request has none of them, and is to cost no more than one look at each of its headers.
        self._headers = frozenset(self._at[Place.HEADER])

    def tag_of(self, facts: RequestFacts, path: TaggedPath) -> Tag | None:
        """What the request says of its trajectory; None if nothing. Raises InvalidId on an unusable id of
        ours.
        """
        headers = facts.headers
        explicit = headers.get(OWN_ID)
        if explicit is not None and (own := kept_id(explicit, OWN_ID)) is not None:
            return Tag("header", own)
        if path.source is not None and path.trajectory_id is not None:
            named = kept_id(path.trajectory_id, "URL path")
            if named is not None and path.source == "url":
                return Tag(path.source, named)
        else:
            named = None
        key = key_of(headers)
        by_key = None if key is None else named_trajectory(key)
        if by_key is not None and (by_key[0] == "key" or named is None):
            trajectory_id = kept_id(by_key[1], "API key")
            if trajectory_id is not None:
                return Tag(by_key[0], trajectory_id)
        if named is not None and path.source is not None:
            return Tag(path.source, named)
        return self._from_table(facts)

    def _from_table(self, facts: RequestFacts) -> Tag | None:
        fields = facts.scan.fields
        if not fields and not facts.query and self._headers.isdisjoint(facts.headers):
            return None
        values: dict[Place, Mapping[str, str]] = {
            _HEADER: facts.headers,
            _QUERY: facts.query,
            _BODY: fields,
        }
        present: set[int] = set()
        for place, carried in values.items():
            rows = self._at[place]
            for name in carried:
                if name in rows:
                    present.update(rows[name])
        for at in sorted(present):
            row = self._rows[at]
            tag = _read(row, values[row.place])
            if tag is not None:
                return tag
        return None


def _read(row: Convention, values: Mapping[str, str]) -> Tag | None:
    root = _first(row.root, values, row)
    agent = _first(row.agent, values)
    if root is None and agent is None:
        return None
    parent = _first(row.parent, values)
    trajectory_id = root or agent or ""
    if root is not None and agent is not None and agent != root:
        trajectory_id = joined_id(root, agent)
        if parent is None:
            parent_agent = _first(row.parent_agent, values)
            parent = root if parent_agent is None else joined_id(root, parent_agent)
    return Tag(
        row.source,
        trajectory_id,
        group_id=_first(row.group, values),
        parent_id=None if parent == trajectory_id else parent,
        final=is_true(_first(row.final, values)),
    )


def _first(names: tuple[str, ...], values: Mapping[str, str], row: Convention | None = None) -> str | None:
    """The first usable id. One that cannot be kept is passed over: foreign conventions never fail a
    request.
    """
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        try:
            usable = kept_id(value if row is None else row.read(value), name)
        except InvalidId:
            continue
        if usable is not None:
            return usable
    return None


def is_true(value: str | None) -> bool:
    """A flag in a header."""
    return value is not None and value.strip().lower() in ("1", "true", "yes")


@dataclass(frozen=True, slots=True)
class OwnFields:
    """What Heddle's own headers add, whichever convention named the trajectory."""

    group_id: str | None = None
    sample: int | None = None
    parent_id: str | None = None
    final: bool = False


_OWN_NAMES: Final = {
    field: (f"x-heddle-{field}", f"x-heddle-trajectory-{field}")
    for field in ("group", "sample", "parent", "final")
}
_ALL_OWN: Final = frozenset(name for names in _OWN_NAMES.values() for name in names)


def own_fields(headers: Mapping[str, str]) -> OwnFields | None:
    """None if there are none. Raises InvalidId, naming the header."""
    if _ALL_OWN.isdisjoint(headers):
        return None
    found: dict[str, tuple[str, str]] = {}
    for field, names in _OWN_NAMES.items():
        for name in names:
            if name in headers:
                found[field] = (name, headers[name])
                break
    group, parent = (
        kept_id(found[field][1], found[field][0]) if field in found else None for field in ("group", "parent")
    )
    sample: int | None = None
    if "sample" in found:
        name, text = found["sample"]
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidId(name, "a sample is a number from 0")
        sample = int(text)
    return OwnFields(group, sample, parent, is_true(found["final"][1] if "final" in found else None))
