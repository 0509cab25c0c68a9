"""Text completions: one or several prompts, as text or token ids."""

import time
from collections.abc import Sequence
from typing import Any

from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.logprobs import completion_logprobs, token_logprobs
from heddle_shim.emulator.reply import DONE, ended, event, finish_word, matched_stop, usage_of
from heddle_shim.emulator.request_fields import Body, flag, text
from heddle_shim.emulator.sampling import Choice, PromptWork, Sampling, plan_prompt, read_completion
from heddle_shim.emulator.tokens import VOCABULARY_SIZE, TokenMemo, decode, pack
from heddle_shim.emulator.worker import EmulatedWorker


def packed_ids(value: Sequence[object], place: str) -> bytes:
    """Token ids of a request as a sequence.

    Raises:
        ApiError: one is no id of the vocabulary.
    """
    for token in value:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < VOCABULARY_SIZE:
            raise ApiError(f"{place}: {token!r} is not a token id below {VOCABULARY_SIZE}")
    return pack(token for token in value if isinstance(token, int))


def prompts_of(memo: TokenMemo, value: object, place: str) -> list[bytes]:
    """A string, a list of strings, a list of ids, or a list of lists of ids."""
    if isinstance(value, str):
        return [memo.encode(value)]
    if not isinstance(value, list) or not value:
        raise ApiError(f"{place}: must be a string, a list of strings, or a list of token ids")
    if isinstance(value[0], int):
        return [packed_ids(value, place)]
    prompts: list[bytes] = []
    for index, item in enumerate(value):
        if isinstance(item, str):
            prompts.append(memo.encode(item))
        elif isinstance(item, list):
            prompts.append(packed_ids(item, f"{place}[{index}]"))
        else:
            raise ApiError(f"{place}[{index}]: must be a string or a list of token ids")
    return prompts


class _ChoiceStream:
    def __init__(self, choice: Choice, index: int, opening: str) -> None:
        self.choice = choice
        self.index = index
        self.opening = opening
        """The prompt, where the request wants it echoed."""
        self.sent = 0
        self.offset = 0
        self.closed = False


class CompletionReply:
    """One completions request."""

    opening: bytes | None = None

    def __init__(self, worker: EmulatedWorker, body: Body) -> None:
        sampling = read_completion(body)
        echo = flag(body, "echo", False)
        prompts = prompts_of(worker.memo, body.get("prompt"), "prompt")
        self._worker = worker
        self._sampling: Sampling = sampling
        self._created = int(time.time())
        self._model = text(body, "model") or worker.settings.model
        self._works: list[PromptWork] = []
        self._streams: list[_ChoiceStream] = []
        for index, prompt in enumerate(prompts):
            rid = sampling.rid if len(prompts) == 1 else f"{sampling.rid}_p{index}"
            work = plan_prompt(worker, sampling, prompt, rid, leading_space=True)
            self._works.append(work)
            opening = decode(prompt) if echo else ""
            for choice in work.choices:
                self._streams.append(_ChoiceStream(choice, len(self._streams), opening))

    @property
    def stream(self) -> bool:
        return self._sampling.stream

    @property
    def works(self) -> list[PromptWork]:
        return self._works

    def whole(self) -> dict[str, Any]:
        made = [stream.choice.generation.made for stream in self._streams]
        choices = [self._whole_choice(stream) for stream in self._streams]
        return self._object("text_completion") | {
            "choices": choices,
            "usage": self._usage(made),
            "metadata": {"weight_version": "default"},
        }

    def refused(self, error: ApiError) -> bytes:
        return error.event()

    def frames(self, made: Sequence[int]) -> bytes:
        frames: list[bytes] = []
        for stream, tokens in zip(self._streams, made, strict=True):
            if stream.closed:
                continue
            pieces = stream.choice.answer.pieces()
            while stream.sent < tokens:
                piece = stream.opening + pieces[stream.sent] if stream.sent == 0 else pieces[stream.sent]
                frames.append(self._chunk(stream, piece, made))
                stream.sent += 1
            if ended(stream.choice.generation):
                stream.closed = True
                frames.append(self._chunk(stream, "", made, finish=finish_word(stream.choice)))
        if all(stream.closed for stream in self._streams):
            if self._sampling.include_usage:
                frames.append(
                    event(self._object("text_completion") | {"choices": [], "usage": self._usage(made)})
                )
            frames.append(DONE)
        return b"".join(frames)

    def _object(self, kind: str) -> dict[str, Any]:
        return {"id": self._sampling.rid, "object": kind, "created": self._created, "model": self._model}

    def _chunk(
        self, stream: _ChoiceStream, piece: str, made: Sequence[int], finish: str | None = None
    ) -> bytes:
        logprobs = None
        if finish is None and self._sampling.alternatives is not None:
            at = stream.sent
            found = token_logprobs(stream.choice.answer, at, at + 1, self._sampling.alternatives)
            logprobs = completion_logprobs(found, stream.offset)
            stream.offset += len(piece)
        choice = {
            "index": stream.index,
            "text": piece,
            "logprobs": logprobs,
            "finish_reason": finish,
            "matched_stop": matched_stop(stream.choice) if finish else None,
        }
        usage = self._usage(made) if self._sampling.continuous_usage else None
        return event(self._object("text_completion") | {"choices": [choice], "usage": usage})

    def _whole_choice(self, stream: _ChoiceStream) -> dict[str, Any]:
        choice = stream.choice
        logprobs = None
        if self._sampling.alternatives is not None:
            found = token_logprobs(choice.answer, 0, choice.generation.made, self._sampling.alternatives)
            logprobs = completion_logprobs(found, len(stream.opening))
        return {
            "index": stream.index,
            "text": stream.opening + said(choice),
            "logprobs": logprobs,
            "finish_reason": finish_word(choice),
            "matched_stop": matched_stop(choice),
        }

    def _usage(self, made: Sequence[int]) -> dict[str, Any]:
        return usage_of(self._works, made, cache_report=self._worker.settings.enable_cache_report)


def said(choice: Choice) -> str:
    """The text of a choice as far as it was generated."""
    if choice.aborted:
        return "".join(choice.answer.pieces()[: choice.generation.made])
    return choice.answer.content
