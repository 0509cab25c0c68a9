"""What the model says: exact lengths, valid JSON, histories whose rendering starts with what was computed."""

import json
from typing import Any

import pytest
from heddle_shim.emulator.answer import Answer, AnswerRequest, Finish, LengthRule, plan_answer
from heddle_shim.emulator.chat import ChatError, render_chat
from heddle_shim.emulator.json_answer import SchemaError, frame_for
from heddle_shim.emulator.tokens import Special, TokenMemo, count, decode, encode, unpack
from hypothesis import given
from hypothesis import strategies as st

BASH = {
    "name": "bash_execute",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "integer", "minimum": 5}},
        "required": ["command", "timeout"],
    },
}
SUBMIT = {"name": "submit", "parameters": {"type": "object", "properties": {}}}


def request(length: int, **fields: Any) -> AnswerRequest:
    return AnswerRequest(**{"max_tokens": length, "given": True, "seed": 7, **fields})


def message_of(answer: Answer) -> dict[str, Any]:
    calls = [
        {"id": "x", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]
    return {"role": "assistant", "content": answer.content or None, "tool_calls": calls or None}


@given(
    st.integers(1, 400), st.integers(0, 2**63), st.booleans(), st.sampled_from([[], [BASH], [BASH, SUBMIT]])
)
def test_a_replayed_answer_has_exactly_the_tokens_that_were_asked_for(
    length: int, seed: int, must: bool, tools: list[dict[str, Any]]
) -> None:
    answer = plan_answer(
        request(length, seed=seed, tools=tools, must_call=must and bool(tools)), LengthRule.MAX_TOKENS
    )
    assert count(answer.tokens) == length
    if answer.finish is Finish.TOOL_CALLS:
        assert all(isinstance(json.loads(call.arguments), dict) for call in answer.calls)
    if length >= 40:
        assert answer.finish is (Finish.TOOL_CALLS if tools else Finish.STOP)


@given(
    st.integers(0, 300),
    st.integers(0, 2**63),
    st.sampled_from(list(LengthRule)),
    st.sampled_from([[], [BASH], [BASH, SUBMIT]]),
    st.text(max_size=20),
)
def test_the_next_prompt_starts_with_this_prompt_and_this_answer(
    length: int, seed: int, rule: LengthRule, tools: list[dict[str, Any]], text: str
) -> None:
    memo = TokenMemo()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": text},
    ]
    prompt = render_chat(memo, messages, tools)
    answer = plan_answer(request(length, seed=seed, tools=tools), rule)
    messages += [message_of(answer), {"role": "tool", "tool_call_id": "x", "content": "ok"}]
    following = render_chat(memo, messages, tools)
    cut_in_a_call = answer.finish is Finish.LENGTH and Special.CALL in unpack(answer.tokens)
    assert not cut_in_a_call
    assert following.startswith(prompt + answer.tokens)


def test_what_was_said_is_what_the_tokens_spell() -> None:
    answer = plan_answer(request(80, tools=[BASH]), LengthRule.MAX_TOKENS)
    call = answer.calls[0]
    assert decode(answer.tokens) == answer.content + call.name + call.arguments
    assert "".join(answer.pieces()) == decode(answer.tokens)
    assert len(answer.pieces()) == 80


def test_a_natural_answer_is_cut_by_max_tokens_and_otherwise_ends_by_itself() -> None:
    answers = [plan_answer(request(100, seed=seed, given=True), LengthRule.NATURAL) for seed in range(200)]
    cut = [answer for answer in answers if answer.finish is Finish.LENGTH]
    own = [answer for answer in answers if answer.finish is Finish.STOP]
    assert {count(answer.tokens) for answer in cut} == {100}
    assert len({count(answer.tokens) for answer in own}) > 20
    assert len(cut) + len(own) == 200
    assert len(cut) > 50
    assert len(own) > 20


def test_a_natural_answer_calls_a_tool_mostly_and_two_sometimes() -> None:
    answers = [plan_answer(request(5000, seed=seed, tools=[BASH]), LengthRule.NATURAL) for seed in range(300)]
    calls = [len(answer.calls) for answer in answers]
    assert 0.7 < sum(1 for made in calls if made) / 300 < 0.95
    assert 0 < sum(1 for made in calls if made == 2) < 60


def test_with_end_of_turn_ignored_the_answer_runs_to_max_tokens() -> None:
    answer = plan_answer(request(50, ignore_eos=True, tools=[BASH]), LengthRule.NATURAL)
    assert (answer.finish, count(answer.tokens)) == (Finish.LENGTH, 50)
    assert Special.END not in unpack(answer.tokens)


def test_a_stop_string_ends_the_answer_before_it() -> None:
    whole = plan_answer(request(50), LengthRule.MAX_TOKENS)
    words = whole.content.split(" ")
    stopped = plan_answer(request(50, stop=("absent", words[10])), LengthRule.MAX_TOKENS)
    assert stopped.content == " ".join(words[:10]) + " "
    assert stopped.finish is Finish.STOP
    assert stopped.matched_stop == words[10]
    assert count(stopped.tokens) == 11


def test_a_call_that_is_forced_into_too_few_tokens_is_cut_off() -> None:
    answer = plan_answer(request(5, tools=[BASH], must_call=True), LengthRule.MAX_TOKENS)
    assert (answer.finish, answer.calls, count(answer.tokens)) == (Finish.LENGTH, [], 5)


@given(st.integers(30, 200))
def test_a_json_answer_is_valid_and_padded_to_its_length(length: int) -> None:
    answer = plan_answer(request(length, json_wanted=True), LengthRule.MAX_TOKENS)
    assert isinstance(json.loads(answer.content), dict)
    assert count(answer.tokens) == length
    assert encode(answer.content) == answer.tokens[:-4]


SCHEMAS: list[tuple[dict[str, Any], Any]] = [
    ({"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]}, {"n": 3}),
    ({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2}, ["a", "a"]),
    ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
    ({"const": 5}, 5),
    ({"type": ["boolean", "null"]}, True),
    ({"type": "number", "exclusiveMinimum": 2}, 3),
    ({"type": "integer", "maximum": -4}, -4),
    ({"type": "string", "maxLength": 3}, "a"),
    ({"type": "string", "format": "date"}, "2026-01-01"),
    (
        {
            "$defs": {"p": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}},
            "type": "object",
            "properties": {"p": {"$ref": "#/$defs/p"}, "q": {"allOf": [{"$ref": "#/$defs/p"}]}},
            "required": ["p", "q"],
        },
        {"p": {"x": True}, "q": {"x": True}},
    ),
]


@pytest.mark.parametrize(("schema", "value"), SCHEMAS)
def test_json_fits_the_schema(schema: dict[str, Any], value: object) -> None:
    frame = frame_for(schema)
    assert frame.tail is None
    assert json.loads(frame.head) == value


def test_only_the_first_free_string_is_left_open() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "required": ["a", "b"],
    }
    frame = frame_for(schema)
    assert frame.tail is not None
    assert json.loads(frame.head + "some words" + frame.tail) == {"a": "some words", "b": "a"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/absent"},
        {"$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}]}}, "$ref": "#/$defs/n"},
    ],
)
def test_a_schema_without_an_answer_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        frame_for(schema)


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        (None, "messages"),
        ([], "messages"),
        ([{"content": "x"}], "messages\\[0\\].role"),
        ([{"role": "user", "content": 5}], "messages\\[0\\].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages\\[0\\].content\\[0\\]"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages\\[0\\].tool_calls\\[0\\]"),
    ],
)
def test_messages_that_cannot_be_rendered_are_refused_by_place(messages: object, place: str) -> None:
    with pytest.raises(ChatError, match=place):
        render_chat(TokenMemo(), messages, None)


def test_text_parts_render_like_one_string_and_null_content_like_none() -> None:
    memo = TokenMemo()
    parts = [{"type": "text", "text": "some "}, {"type": "text", "text": "words"}]
    assert render_chat(memo, [{"role": "user", "content": parts}], None) == render_chat(
        memo, [{"role": "user", "content": "some words"}], None
    )
    assert render_chat(memo, [{"role": "assistant", "content": None}], None) == render_chat(
        memo, [{"role": "assistant", "content": ""}], None
    )


def test_a_call_that_must_be_made_is_as_long_as_it_has_to_be() -> None:
    answers = [
        plan_answer(request(4096, seed=seed, tools=[BASH], must_call=True), LengthRule.NATURAL)
        for seed in range(3000)
    ]
    assert {answer.finish for answer in answers} <= {Finish.TOOL_CALLS, Finish.LENGTH}
    cut = [answer for answer in answers if answer.finish is Finish.LENGTH]
    assert all(count(answer.tokens) == 4096 for answer in cut), "cut where the request says so"
    assert len(cut) < 30
