"""The tokeniser: lossless, exact for generated text, stable under appending."""

import re

import pytest
from heddle_shim.emulator.tokens import (
    VOCABULARY_SIZE,
    Special,
    TokenMemo,
    count,
    decode,
    encode,
    pack,
    piece_of_id,
    pseudo_words,
    unpack,
)
from hypothesis import given
from hypothesis import strategies as st

ANY_TEXT = st.text(st.characters(exclude_categories=[]))


@given(ANY_TEXT)
def test_decoding_gives_back_any_text_even_with_lone_surrogates(text: str) -> None:
    assert decode(encode(text)) == text


@given(st.text("abcXYZ0123 .,\n{}\"'é", max_size=60))
def test_decoding_gives_back_text_of_words_digits_and_punctuation(text: str) -> None:
    assert decode(encode(text)) == text


RULE = re.compile(r" ?[A-Za-z][a-z]{0,3}| ?[0-9]{1,3}|.", re.DOTALL)


@given(st.text("abcdefXYZ  0123.,\n", max_size=80))
def test_tokens_are_the_pieces_of_the_rule(text: str) -> None:
    assert [decode(pack([token])) for token in unpack(encode(text))] == RULE.findall(text)


@given(st.text("abcdefgh XY12.\n", max_size=40), st.integers(0, 2**64 - 1), st.integers(1, 50))
def test_text_followed_by_generated_words_tokenises_to_its_own_ids_and_theirs(
    text: str, seed: int, length: int
) -> None:
    words, ids = pseudo_words(seed, length, leading_space=True)
    assert count(ids) == length
    assert encode(text + words) == encode(text) + ids


@given(st.integers(0, 2**64 - 1), st.integers(1, 50), st.integers(0, 50))
def test_a_longer_draw_starts_with_the_shorter_one(seed: int, length: int, more: int) -> None:
    text, ids = pseudo_words(seed, length, leading_space=False)
    longer_text, longer_ids = pseudo_words(seed, length + more, leading_space=False)
    assert longer_text.startswith(text)
    assert longer_ids.startswith(ids)
    assert encode(text) == ids


@given(ANY_TEXT, ANY_TEXT)
def test_appending_changes_at_most_the_last_token(head: str, tail: str) -> None:
    alone, joined = unpack(encode(head)), unpack(encode(head + tail))
    kept = alone[:-1]
    assert joined[: len(kept)] == kept


@given(st.lists(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=4), min_size=1))
def test_words_of_up_to_four_letters_joined_by_spaces_are_one_token_each(words: list[str]) -> None:
    assert count(encode(" ".join(words))) == len(words)


@given(st.integers(32, VOCABULARY_SIZE - 1))
def test_every_id_has_a_piece_of_its_own(token: int) -> None:
    piece = piece_of_id(token)
    assert piece
    if not (len(piece) == 1 and token < 32 + 256):
        assert unpack(encode(piece.decode())) == [token]


def test_special_ids_have_no_text_and_come_from_no_text() -> None:
    assert all(piece_of_id(token) == b"" for token in Special)
    assert decode(pack([Special.START, *unpack(encode("a b")), Special.END])) == "a b"
    assert min(unpack(encode("".join(map(chr, range(0x250))) + "<|im_start|>"))) >= 32


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        piece_of_id(VOCABULARY_SIZE)


def test_the_memo_gives_what_encode_gives_and_stays_within_its_bound() -> None:
    memo = TokenMemo(limit_tokens=100)
    texts = [f"text number {number} of many" for number in range(200)]
    assert [memo.encode(text) for text in texts] == [encode(text) for text in texts]
    assert len(memo) < 20
    assert memo.encode(texts[-1]) is memo.encode(texts[-1])
