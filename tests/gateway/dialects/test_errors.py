"""Errors as clients expect them, whatever the worker's shape was."""

import json

import pytest
from heddle_gateway.dialects.aborted_answer import aborted_answer, aborted_stream
from heddle_gateway.dialects.dialect import (
    BY_PATH,
    CHAT,
    COMPLETIONS,
    DIALECTS,
    GENERATE,
    TOKENS,
    Dialect,
)
from heddle_gateway.dialects.errors import (
    ApiError,
    Shape,
    error_body,
    message_of,
    retry_after,
    wrapped,
)
from heddle_gateway.dialects.events import EventCutter, end_of_last_event
from heddle_gateway.dialects.stream_errors import error_event
from hypothesis import given
from hypothesis import strategies as st

FLAT = {"object": "error", "message": "too long", "type": "BadRequestError", "param": "messages", "code": 400}


def test_a_flat_error_is_nested_with_all_it_said() -> None:
    assert json.loads(wrapped(400, json.dumps(FLAT).encode())) == {
        "error": {"message": "too long", "type": "BadRequestError", "param": "messages", "code": 400}
    }


def test_a_nested_error_stays_the_same_bytes() -> None:
    body = b'{ "error" : {"message":"no", "type":null, "extra": 1} }'
    assert wrapped(400, body) is body


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"detail":[{"loc":["body"],"msg":"Field required"}]}', "Field required"),
        (b'{"error":"plain"}', "plain"),
        (b"<html>502 Bad Gateway</html>", "502 Bad Gateway"),
        (b"\xff\xfe", "\ufffd"),
        (b"", "503"),
        (b"[1,2]", "[1,2]"),
        (b"null", "null"),
    ],
)
def test_any_other_body_becomes_a_message(body: bytes, text: str) -> None:
    error = json.loads(wrapped(503, body))["error"]
    assert text in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("shape", Shape)
def test_a_worker_without_the_route_is_told_from_one_without_the_model(shape: Shape) -> None:
    absent = json.loads(wrapped(404, b'{"detail":"Not Found"}', shape))["error"]
    assert absent["message"].startswith("Not Found: the worker has no such route")
    assert absent["type"] == "not_found_error"
    model = json.loads(wrapped(404, b'{"detail":"no model x"}', shape))["error"]
    assert model["message"] == "no model x"


def test_the_message_is_found_in_each_shape() -> None:
    assert message_of(json.dumps(FLAT).encode()) == "too long"
    assert message_of(b'{"error":{"message":"x"}}') == "x"
    assert message_of(b"busy") == "busy"


@pytest.mark.parametrize(
    ("seconds", "header"), [(None, b"1"), (0, b"1"), (0.2, b"1"), (1.2, b"2"), (5, b"5"), (1e6, b"120")]
)
def test_retry_after_is_whole_seconds_that_clients_honour(seconds: float | None, header: bytes) -> None:
    assert retry_after(seconds) == header


@pytest.mark.parametrize("status", [429, 503])
def test_busy_answers_always_say_when_to_come_back(status: int) -> None:
    assert dict(ApiError(status, "busy").headers())[b"retry-after"]


def test_what_must_not_be_retried_says_so() -> None:
    assert (b"x-should-retry", b"false") in ApiError(409, "closed", retryable=False).headers()
    assert (b"x-should-retry", b"false") not in ApiError(503, "busy").headers()


@pytest.mark.parametrize("shape", Shape)
def test_an_error_event_is_one_whole_event(shape: Shape) -> None:
    error = error_body(shape, 504, "lost")
    event = error_event(shape, error, None, "resp_1", "m")
    assert end_of_last_event(event) == len(event)
    assert b"lost" in event


def test_the_last_event_of_each_family_is_the_one_its_clients_look_for() -> None:
    events = {shape: error_event(shape, b'{"error":{}}', None, "resp_1", None) for shape in Shape}
    assert events[Shape.OPENAI] == b'data: {"error":{}}\n\n'
    assert events[Shape.ANTHROPIC] == b'event: error\ndata: {"error":{}}\n\n'
    assert events[Shape.RESPONSES].startswith(b"event: response.failed\ndata: ")


def test_a_workers_error_becomes_anthropics_and_stays_if_it_is() -> None:
    said = b'{"type": "error", "error": {"type": "x", "message": "m"}}'
    assert wrapped(400, said, Shape.ANTHROPIC) is said
    for body in (b'{"object":"error","message":"m"}', b'{"error":{"message":"m"}}', b"m"):
        found = json.loads(wrapped(404, body, Shape.ANTHROPIC))
        assert found == {"type": "error", "error": {"type": "not_found_error", "message": "m"}}


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"", 0),
        (b"data: 1", 0),
        (b"data: 1\n", 0),
        (b"data: 1\n\n", 9),
        (b"data: 1\n\ndata: 2", 9),
        (b"data: 1\r\n\r\ndata: 2\r\n", 11),
        (b"data: 1\r\rdata", 9),
        (b"data: 1\n\ndata: 2\r\n\r\nda", 20),
        (b": ping\n\n", 8),
    ],
)
def test_the_end_of_the_last_event_is_found_with_any_line_end(data: bytes, end: int) -> None:
    assert end_of_last_event(data) == end


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\r", b"\r\n", b"\n\n", b":"]), max_size=30), st.data())
def test_events_are_cut_as_if_all_that_is_held_were_looked_at(
    parts: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(parts)
    cutter, held, at = EventCutter(), b"", 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream)))
        piece = stream[at : at + size]
        at += size
        held += piece
        end = end_of_last_event(held)
        assert cutter.feed(piece) == held[:end]
        held = held[end:]
        assert cutter.rest() == held


def test_every_dialect_is_found_by_its_path() -> None:
    assert {BY_PATH[dialect.path] for dialect in DIALECTS} == set(DIALECTS)


def test_an_aborted_step_answers_as_the_engine_does() -> None:
    shape = {"request_id": "r", "model": "m", "choices": 2, "prompt_tokens": 5, "created": 1}
    chat = json.loads(aborted_answer(CHAT, **shape))  # type: ignore[arg-type]
    assert [choice["finish_reason"] for choice in chat["choices"]] == ["abort", "abort"]
    assert chat["usage"]["completion_tokens"] == 0
    native = json.loads(aborted_answer(GENERATE, **shape))  # type: ignore[arg-type]
    assert native["meta_info"]["finish_reason"]["type"] == "abort"
    events = aborted_stream(COMPLETIONS, **shape).split(b"\n\n")  # type: ignore[arg-type]
    assert json.loads(events[0].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "abort"
    assert events[1] == b"data: [DONE]"


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, TOKENS])
def test_an_aborted_step_is_not_answered_with_any_number_of_choices(dialect: Dialect) -> None:
    shape = {"request_id": "r", "model": "m", "prompt_tokens": 5, "created": 1}
    for write in (aborted_answer, aborted_stream):
        assert len(write(dialect, choices=2_000, **shape)) == len(write(dialect, choices=4_000, **shape))  # type: ignore[arg-type]
    assert len(json.loads(aborted_answer(dialect, choices=128, **shape))["choices"]) == 128  # type: ignore[arg-type]
