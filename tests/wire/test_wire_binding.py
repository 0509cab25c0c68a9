"""The native module as Python sees it: types, errors, the same numbers on both sides of a conversation."""

import json
import threading
import time

import pytest
from heddle_core import StreamTap, read_answer, scan_body, splice
from hypothesis import given
from hypothesis import strategies as st

BODY = json.dumps(
    {
        "model": "m",
        "stream": True,
        "n": 2,
        "max_tokens": 7,
        "metadata": {"session_id": "s"},
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "a"},
            {"role": "tool", "content": "t", "tool_call_id": "c"},
        ],
    }
).encode()
RID = "0123456789abcdef0123456789abcdef"


def test_a_scan_has_the_facts_of_the_body() -> None:
    scan = scan_body(BODY, "chat")
    assert (scan.dialect, scan.model, scan.stream, scan.include_usage) == ("chat", "m", True, None)
    assert (scan.choices, scan.max_tokens, scan.messages, scan.assistant_turns) == (2, 7, 4, 1)
    assert scan.roles() == ["system", "user", "assistant", "tool"]
    assert scan.assistant_positions() == [2]
    assert scan.fields == {"metadata.session_id": "s"}
    assert (scan.unit, scan.history_length) == ("messages", 4)
    assert scan.head == scan.message_hashes()[0]
    assert [scan.prefix_hash(length) for length in range(6)] == [None, *scan.chain(), None]
    assert len(scan.call_ids()) == 1


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"a": 1,}', b'{"a": "\xff"}', b"\xef\xbb\xbf{}", b"{} x"]
)
def test_a_body_that_cannot_be_read_is_a_value_error_with_its_position(body) -> None:
    with pytest.raises(ValueError, match=r"at byte \d+$"):
        scan_body(body, "chat")


def test_an_unknown_dialect_is_a_value_error() -> None:
    for call in (
        lambda: scan_body(b"{}", "x"),
        lambda: StreamTap("x", hide_usage=True),
        lambda: read_answer(b"{}", "x"),
    ):
        with pytest.raises(ValueError, match="unknown dialect"):
            call()


def test_a_splice_sets_what_it_is_told_to() -> None:
    scan = scan_body(BODY, "chat")
    out = splice(BODY, scan, rid=RID, priority=-3, ask_usage=True, drop=["metadata"])
    expected = json.loads(BODY)
    del expected["metadata"]
    expected |= {"rid": RID, "priority": -3, "stream_options": {"include_usage": True}}
    assert json.loads(out) == expected
    assert splice(BODY, scan, rid=None, priority=None, ask_usage=False) == BODY


@pytest.mark.parametrize("rid", ['a"b', "a b", "é", "a\n"])
def test_an_rid_that_would_need_escapes_is_refused(rid) -> None:
    with pytest.raises(ValueError, match="rid"):
        splice(BODY, scan_body(BODY, "chat"), rid=rid, priority=None, ask_usage=False)


def test_a_scan_of_another_body_is_refused() -> None:
    with pytest.raises(ValueError, match="another body"):
        splice(BODY + b" ", scan_body(BODY, "chat"), rid=RID, priority=None, ask_usage=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=8), JSON), st.booleans())
def test_whatever_pythons_json_writes_is_read_and_spliced(body, ascii_only) -> None:
    data = json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    out = splice(data, scan_body(data, "chat"), rid=RID, priority=1, ask_usage=False)
    expected = json.dumps(json.loads(data) | {"rid": RID, "priority": 1}, sort_keys=True)
    assert json.dumps(json.loads(out), sort_keys=True) == expected


def test_large_bodies_are_read_without_the_interpreter_lock() -> None:
    large = json.dumps({"messages": [{"role": "user", "content": "x" * 80_000_000}]}).encode()
    spans: list[float] = []
    done = threading.Event()

    def read() -> None:
        start = time.perf_counter()
        scan_body(large, "chat")
        spans.append(time.perf_counter() - start)
        done.set()

    reader = threading.Thread(target=read)
    longest_stop, last = 0.0, time.perf_counter()
    reader.start()
    while not done.is_set():
        now = time.perf_counter()
        longest_stop, last = max(longest_stop, now - last), now
    reader.join()
    longest_stop = max(longest_stop, time.perf_counter() - last)
    # With the lock held all along, this thread would stand still for the whole of it.
    assert longest_stop < spans[0] / 2


def test_a_tap_hands_back_the_very_bytes_it_does_not_change() -> None:
    tap = StreamTap("chat", hide_usage=True)
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    assert tap.feed(chunk) is chunk
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
    assert tap.feed(usage) == b""
    assert tap.feed(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"
    assert tap.finish() == b""
    answer = tap.answer()
    assert (answer.prompt_tokens, answer.output_tokens, answer.chunks, answer.done) == (3, 1, 1, True)


def test_an_answer_and_the_message_sent_back_have_one_hash() -> None:
    answer = read_answer(b'{"choices":[{"message":{"role":"assistant","content":"a"}}]}', "chat")
    assert answer.answer_hashes == [scan_body(BODY, "chat").message_hashes()[2]]
    assert (answer.done, answer.error, answer.prompt_tokens) == (True, None, None)
