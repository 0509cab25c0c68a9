"""Page names as SGLang 0.5.23 gives them; the expected values are from its own native hash."""

import pytest
from heddle_shim.page_hashes import event_hash, page_hashes

# get_hash_str(list(range(32)), None, page_size=16), and range(16) after storage_namespace_seed("v1", None).
FIRST = "5d85718ec594b982c252d0279e5966ffca33a5eaf2a455038d3ab331fde70cea"
SECOND = "4681c0107c38f402cd1bc30b0b09a65202dba31f98269d9d7f63f5e0dea6901a"
IN_NAMESPACE = "48de9446ee9c9757dc8b0c1cf549a73d512cffb8831de5352cec01a929d29f71"


def test_hashes_are_those_of_sglang() -> None:
    assert page_hashes(range(32), 16) == [FIRST, SECOND]
    assert page_hashes(range(16), 16, "v1") == [IN_NAMESPACE]


def test_what_is_left_over_has_no_page() -> None:
    assert page_hashes(range(47), 16) == [FIRST, SECOND]
    assert page_hashes(range(15), 16) == []


def test_a_page_names_the_whole_prefix() -> None:
    assert page_hashes([1, *range(1, 32)], 16)[1] != SECOND


def test_absent_empty_and_joined_namespaces_differ() -> None:
    named = [(None, None), ("", None), (None, ""), ("a", "bc"), ("ab", "c")]
    assert len({page_hashes(range(16), 16, key, salt)[0] for key, salt in named}) == len(named)


def test_events_name_a_page_by_its_first_bytes() -> None:
    assert event_hash("00000000000000ff" + "0" * 48) == 255
    assert event_hash("f" * 64) == -1


def test_a_token_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="tokens: ids are whole numbers"):
        page_hashes([-1] * 16, 16)
