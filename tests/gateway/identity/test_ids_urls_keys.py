"""Ids as they are written in paths, headers and keys."""

import re

import pytest
from heddle_gateway.identity import InvalidId, TaggedPath, split_path, tenant_of
from heddle_gateway.identity.book import time_ordered_id
from heddle_gateway.identity.ids import kept_id
from hypothesis import given
from hypothesis import strategies as st

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (CHAT, TaggedPath(CHAT)),
        ("/generate", TaggedPath("/generate")),
        ("/admin/v1/workers", TaggedPath("/admin/v1/workers")),
        ("/health", TaggedPath("/health")),
        (f"/t/run-1{CHAT}", TaggedPath(CHAT, "url", "run-1")),
        ("/t/run-1/v1/models", TaggedPath("/v1/models", "url", "run-1")),
        ("/t/run-1/generate", TaggedPath("/generate", "url", "run-1")),
        ("/inference/v1/generate", TaggedPath("/inference/v1/generate")),
        ("/t/run-1/inference/v1/generate", TaggedPath("/inference/v1/generate", "url", "run-1")),
        ("/sessions/a/b/detokenize", TaggedPath("/detokenize", "url-sessions", "a/b")),
        ("/t/run-1/chat/completions", TaggedPath(CHAT, "url", "run-1")),
        (f"/t/a/b/c{CHAT}", TaggedPath(CHAT, "url", "a/b/c")),
        ("/t/run-1", TaggedPath("/t/run-1")),
        (f"/sessions/harbor/hello-world:0{CHAT}", TaggedPath(CHAT, "url-sessions", "harbor/hello-world:0")),
        (f"/t/x/{CHAT}", TaggedPath(CHAT, "url", "x")),
        (f"/t/{CHAT}", TaggedPath(CHAT)),
        (f"/t//{CHAT}", TaggedPath(CHAT)),
        (f"/sessions/{CHAT}", TaggedPath(CHAT)),
        (f"/t/v1{CHAT}", TaggedPath(CHAT, "url", "v1")),
        ("/sessions/s1", TaggedPath("/sessions/s1")),
        (
            f"/proxy/rollout/r1/attempt/a2/mode/train/openai{CHAT}",
            TaggedPath(CHAT, "url-rollout", "r1/a2"),
        ),
        (f"/rollout/r1/attempt/a2{CHAT}", TaggedPath(CHAT, "url-rollout", "r1/a2")),
        (f"/trial-9{CHAT}", TaggedPath(CHAT, "url-prefix", "trial-9")),
        (f"/openai{CHAT}", TaggedPath(f"/openai{CHAT}")),
        ("/trial-9/v1/unknown", TaggedPath("/trial-9/v1/unknown")),
        # Whatever follows, the id ends at the first API path: no second one is tried.
        (f"/t/x{'/v1/a' * 99}\n", TaggedPath("/v1/a" * 99 + "\n", "url", "x")),
        (
            f"/sessions/x{'/models/a' * 99}\n",
            TaggedPath("/v1" + "/models/a" * 99 + "\n", "url-sessions", "x"),
        ),
        (f"/t/x/generate/y{CHAT}", TaggedPath(CHAT, "url", "x/generate/y")),
    ],
)
def test_a_path_is_taken_apart(path, expected) -> None:
    assert split_path(path) == expected


@given(st.text(min_size=1, max_size=60))
def test_any_id_before_the_apis_path_comes_back(trajectory_id) -> None:
    path = split_path(f"/t/{trajectory_id}{CHAT}")
    if "/v1" in trajectory_id or trajectory_id.endswith("/"):
        assert path.rest.endswith(CHAT)
    else:
        assert path == TaggedPath(CHAT, "url", trajectory_id)


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/models"])
def test_a_base_url_without_v1_is_served_as_one_with_it(path) -> None:
    assert split_path(path) == TaggedPath(f"/v1{path}")


def test_an_id_is_the_same_from_a_path_and_from_a_header(caller) -> None:
    from_path = caller.book.resolve(caller.facts({"messages": []}, path=f"/t/a b/ü:0{CHAT}"))
    utf8_as_latin1 = "a b/ü:0".encode().decode("latin-1")
    from_header = caller.book.resolve(
        caller.facts({"messages": []}, headers={"x-heddle-trajectory-id": utf8_as_latin1})
    )
    escaped = caller.book.resolve(
        caller.facts({"messages": []}, headers={"x-heddle-trajectory-id": "a%20b/%C3%BC:0"})
    )
    assert from_path.trajectory_id == from_header.trajectory_id == escaped.trajectory_id == "a%20b/%C3%BC:0"


NO_CONTROL = st.characters(exclude_categories=["Cc", "Cs"])


@given(st.text(NO_CONTROL, max_size=20))
def test_a_kept_id_is_printable_ascii_and_stays_as_it_is(text) -> None:
    kept = kept_id(text, "carrier")
    if kept is None:
        assert not text.strip()
        return
    assert kept.isascii()
    assert kept.isprintable()
    assert " " not in kept
    assert kept_id(kept, "carrier") == kept


@given(
    st.text(NO_CONTROL, min_size=1, max_size=9),
    st.sampled_from("\x00\x1b\x7f\r"),
    st.text(NO_CONTROL, max_size=9),
)
def test_a_control_character_inside_an_id_is_refused(before, control, after) -> None:
    with pytest.raises(InvalidId, match="carrier: control characters"):
        kept_id(f"a{before}{control}{after}z", "carrier")


def test_plain_ids_are_kept_letter_for_letter() -> None:
    for text in ("run-1", "harbor/hello-world:0", "a.b_c@d+e=f~g", "x" * 256):
        assert kept_id(text, "c") == text


def test_a_stray_percent_sign_is_no_escape() -> None:
    assert kept_id("100%", "c") == "100%25"


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer secret"}, {"authorization": "bearer secret"}, {"x-api-key": "secret"}],
)
def test_a_tenant_is_a_hash_of_the_key_wherever_it_stands(headers) -> None:
    assert tenant_of(headers) == tenant_of({"x-goog-api-key": "secret"})
    assert "secret" not in tenant_of(headers)
    assert len(tenant_of(headers)) == 16


def test_keys_that_name_a_trajectory_are_of_one_tenant() -> None:
    # Or the samples of one prompt, each with a key of its own, would never meet in one group.
    assert tenant_of({}) == ""
    assert tenant_of({"authorization": "Bearer sk-heddle-1"}) == ""
    assert tenant_of({"x-api-key": "sk-sess-1"}) == ""


def test_ids_of_untagged_trajectories_sort_by_age_and_differ_within_a_millisecond() -> None:
    earlier = {time_ordered_id() for _ in range(2000)}
    assert len(earlier) == 2000
    made_at = max(earlier)[:17]
    while (later := time_ordered_id())[:17] == made_at:
        pass
    assert later > max(earlier)
    assert re.fullmatch(r"auto-[0-9a-f]{24}", later)
