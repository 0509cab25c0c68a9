"""SGLang's own /generate: text or token ids in, text and token ids out, cumulative events in a stream."""

from collections.abc import Sequence
from typing import Any

from heddle_shim.emulator.answer import Finish
from heddle_shim.emulator.completion_reply import packed_ids, prompts_of, said
from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.generation import Ending
from heddle_shim.emulator.logprobs import native_logprobs, token_logprobs
from heddle_shim.emulator.reply import DONE, ended, event
from heddle_shim.emulator.request_fields import Body
from heddle_shim.emulator.sampling import Choice, PromptWork, Sampling, new_rid, plan_prompt, read_native
from heddle_shim.emulator.tokens import unpack
from heddle_shim.emulator.worker import EmulatedWorker


class NativeReply:
    """One /generate request, single or batch."""

    opening: bytes | None = None

    def __init__(self, worker: EmulatedWorker, body: Body) -> None:
        single, prompts = _prompts(worker, body)
        rids = _rids(body, len(prompts), single=single)
        params = body.get("sampling_params")
        self._works: list[PromptWork] = []
        self._samplings: list[Sampling] = []
        for index, (prompt, rid) in enumerate(zip(prompts, rids, strict=True)):
            own = params
            if isinstance(params, list):
                if len(params) != len(prompts):
                    raise ApiError("sampling_params: must have one entry for each prompt")
                own = params[index]
            sampling = read_native({**body, "rid": rid, "sampling_params": own})
            self._samplings.append(sampling)
            self._works.append(plan_prompt(worker, sampling, prompt, rid, leading_space=True))
        self._single = single and self._samplings[0].choices == 1
        self._choices: list[tuple[Choice, PromptWork, Sampling]] = [
            (choice, work, sampling)
            for work, sampling in zip(self._works, self._samplings, strict=True)
            for choice in work.choices
        ]
        self._sent = [-1] * len(self._choices)
        self._closed = [False] * len(self._choices)

    @property
    def stream(self) -> bool:
        return self._samplings[0].stream

    @property
    def works(self) -> list[PromptWork]:
        return self._works

    def whole(self) -> dict[str, Any] | list[dict[str, Any]]:
        outputs = [
            self._output(index, choice.generation.made) for index, (choice, _, _) in enumerate(self._choices)
        ]
        return outputs[0] if self._single else outputs

    def refused(self, error: ApiError) -> bytes:
        return error.event()

    def frames(self, made: Sequence[int]) -> bytes:
        frames: list[bytes] = []
        for index, tokens in enumerate(made):
            finished = ended(self._choices[index][0].generation)
            if self._closed[index] or (tokens <= max(0, self._sent[index]) and not finished):
                continue
            self._sent[index] = tokens
            self._closed[index] = finished
            output = self._output(index, tokens)
            frames.append(event(output if self._single else output | {"index": index}))
        if all(self._closed):
            frames.append(DONE)
        return b"".join(frames)

    def _output(self, index: int, made: int) -> dict[str, Any]:
        choice, work, sampling = self._choices[index]
        finished = ended(choice.generation)
        text = said(choice) if finished else "".join(choice.answer.pieces()[:made])
        meta = self._meta(choice, work, made)
        if sampling.alternatives is not None:
            meta |= native_logprobs(token_logprobs(choice.answer, 0, made, sampling.alternatives))
        return {"text": text, "output_ids": unpack(choice.answer.tokens)[:made], "meta_info": meta}

    def _meta(self, choice: Choice, work: PromptWork, made: int) -> dict[str, Any]:
        generation = choice.generation
        meta: dict[str, Any] = {
            "id": generation.rid,
            "finish_reason": _finish(choice) if ended(generation) else None,
            "prompt_tokens": generation.prompt_tokens,
            "completion_tokens": made,
            "cached_tokens": work.cached_tokens,
            "reasoning_tokens": 0,
            "weight_version": "default",
            "num_retractions": generation.retractions,
            "dp_rank": None,
        }
        if generation.finished_at is not None:
            begun = generation.created_at
            admitted = (
                generation.admitted_at if generation.admitted_at is not None else generation.finished_at
            )
            meta["e2e_latency"] = generation.finished_at - begun
            meta["queue_time"] = admitted - begun
        return meta


def _finish(choice: Choice) -> dict[str, Any]:
    generation, answer = choice.generation, choice.answer
    if generation.ending is Ending.ABORTED:
        return {"type": "abort", "message": generation.message or "Aborted"}
    if answer.finish is Finish.LENGTH:
        return {"type": "length", "length": generation.made}
    return {"type": "stop", "matched": answer.matched_stop}


def _prompts(worker: EmulatedWorker, body: Body) -> tuple[bool, list[bytes]]:
    """(whether it is one prompt, the prompts)."""
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise ApiError("Either text or input_ids should be provided.")
    if text is not None:
        if not isinstance(text, str) and not (
            isinstance(text, list) and all(isinstance(one, str) for one in text)
        ):
            raise ApiError("text: must be a string or a list of strings")
        return isinstance(text, str), prompts_of(worker.memo, text, "text")
    if not isinstance(ids, list) or not ids:
        raise ApiError("input_ids: must be a list of token ids, or a list of such lists")
    if all(isinstance(one, list) for one in ids):
        return False, [packed_ids(one, f"input_ids[{index}]") for index, one in enumerate(ids)]
    return True, [packed_ids(ids, "input_ids")]


def _rids(body: Body, prompts: int, *, single: bool) -> list[str]:
    rid = body.get("rid")
    if rid is None:
        return [new_rid() for _ in range(prompts)]
    if isinstance(rid, str):
        return [rid] if single else [f"{rid}_{index}" for index in range(prompts)]
    if not isinstance(rid, list) or len(rid) != prompts or not all(isinstance(one, str) for one in rid):
        raise ApiError("rid: must be a string, or a list with one string for each prompt")
    return list(rid)
