"""What a request asks of the model, read from the OpenAI body or from SGLang's ``sampling_params``; and its
planning.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from heddle_shim.emulator.answer import Answer, AnswerRequest, plan_answer, seed_of
from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.generation import Generation
from heddle_shim.emulator.json_answer import SchemaError
from heddle_shim.emulator.request_fields import (
    Body,
    flag,
    integer,
    mapping,
    number,
    optional_integer,
    text,
    texts,
)
from heddle_shim.emulator.tokens import count
from heddle_shim.emulator.worker import EmulatedWorker

MAX_CHOICES: Final = 128


@dataclass(frozen=True, slots=True)
class Sampling:
    """``max_tokens`` None means as much as fits. ``alternatives`` is top_logprobs, None without logprobs."""

    rid: str
    priority: int | None
    stream: bool
    choices: int
    max_tokens: int | None
    greedy: bool
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    alternatives: int | None
    tools: tuple[Mapping[str, Any], ...] = ()
    must_call: bool = False
    several_calls: bool = True
    json_wanted: bool = False
    json_schema: Mapping[str, Any] | None = None
    include_usage: bool = False
    continuous_usage: bool = False


def new_rid() -> str:
    """A request id as SGLang mints one."""
    return uuid.uuid4().hex


def read_chat(body: Body) -> Sampling:
    """The chat completions body; see protocol.ChatCompletionRequest."""
    tools, must_call = _tools(body)
    json_wanted, schema = _response_format(body)
    limit = optional_integer(body, "max_completion_tokens")
    if limit is None:
        limit = optional_integer(body, "max_tokens")
    alternatives = integer(body, "top_logprobs", 0, low=0, high=20) if flag(body, "logprobs", False) else None
    return _openai(
        body,
        max_tokens=limit,
        alternatives=alternatives,
        tools=tools,
        must_call=must_call,
        several_calls=flag(body, "parallel_tool_calls", True),
        json_wanted=json_wanted,
        json_schema=schema,
    )


def read_completion(body: Body) -> Sampling:
    """The completions body; max_tokens is 16 unless given, as in OpenAI's API."""
    json_wanted, schema = _response_format(body)
    alternatives = None if body.get("logprobs") is None else integer(body, "logprobs", 0, low=0, high=20)
    return _openai(
        body,
        max_tokens=integer(body, "max_tokens", 16, low=0),
        alternatives=alternatives,
        json_wanted=json_wanted,
        json_schema=schema,
    )


def read_native(body: Body) -> Sampling:
    """The /generate body with its ``sampling_params``; max_new_tokens is 128 unless given."""
    params = mapping(body, "sampling_params")
    schema = text(params, "json_schema")
    alternatives = (
        integer(body, "top_logprobs_num", 0, low=0) if flag(body, "return_logprob", False) else None
    )
    seed = optional_integer(params, "sampling_seed")
    return Sampling(
        rid=text(body, "rid") or new_rid(),
        priority=optional_integer(body, "priority"),
        stream=flag(body, "stream", False),
        choices=integer(params, "n", 1, low=1, high=MAX_CHOICES),
        max_tokens=integer(params, "max_new_tokens", 128, low=0),
        greedy=number(params, "temperature", 1.0, low=0.0) == 0,
        seed=seed,
        stop=texts(params, "stop"),
        ignore_eos=flag(params, "ignore_eos", False),
        alternatives=alternatives,
        json_wanted=schema is not None,
        json_schema=_parsed_schema(schema) if schema is not None else None,
    )


def _openai(
    body: Body,
    *,
    max_tokens: int | None,
    alternatives: int | None,
    json_wanted: bool,
    json_schema: Mapping[str, Any] | None,
    tools: tuple[Mapping[str, Any], ...] = (),
    must_call: bool = False,
    several_calls: bool = True,
) -> Sampling:
    if max_tokens is not None and max_tokens < 0:
        raise ApiError("max_tokens: must be at least 0")
    options = mapping(body, "stream_options")
    return Sampling(
        rid=text(body, "rid") or new_rid(),
        priority=optional_integer(body, "priority"),
        stream=flag(body, "stream", False),
        choices=integer(body, "n", 1, low=1, high=MAX_CHOICES),
        max_tokens=max_tokens,
        greedy=number(body, "temperature", 1.0, low=0.0) == 0,
        seed=optional_integer(body, "seed"),
        stop=texts(body, "stop"),
        ignore_eos=flag(body, "ignore_eos", False),
        alternatives=alternatives,
        tools=tools,
        must_call=must_call,
        several_calls=several_calls,
        json_wanted=json_wanted,
        json_schema=json_schema,
        include_usage=flag(options, "include_usage", False),
        continuous_usage=flag(options, "continuous_usage_stats", False),
    )


def _tools(body: Body) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """The functions the answer may call, and whether it must."""
    given = body.get("tools")
    if given is None:
        given = []
    if not isinstance(given, list):
        raise ApiError("tools: must be a list")
    functions: list[Mapping[str, Any]] = []
    for index, tool in enumerate(given):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(f"tools[{index}].function.name: must be a string")
        functions.append(function)
    choice = body.get("tool_choice")
    if choice == "none":
        return (), False
    if choice == "required":
        if not functions:
            raise ApiError("tools: must not be empty with tool_choice required")
        return tuple(functions), True
    if isinstance(choice, dict):
        named = choice.get("function", {}).get("name") if isinstance(choice.get("function"), dict) else None
        chosen = tuple(function for function in functions if function["name"] == named)
        if not chosen:
            raise ApiError(f"tool_choice: function {named!r} is not among the tools")
        return chosen, True
    if choice not in (None, "auto"):
        raise ApiError("tool_choice: must be none, auto, required or a function")
    return tuple(functions), False


def _response_format(body: Body) -> tuple[bool, Mapping[str, Any] | None]:
    wanted = mapping(body, "response_format")
    kind = wanted.get("type", "text")
    if kind == "text":
        return False, None
    if kind == "json_object":
        return True, None
    if kind == "json_schema":
        schema = mapping(wanted, "json_schema").get("schema")
        if not isinstance(schema, dict):
            raise ApiError("response_format.json_schema.schema: must be an object")
        return True, schema
    raise ApiError("response_format.type: must be text, json_object or json_schema")


def _parsed_schema(schema: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise ApiError(f"json_schema: {error}") from error
    if not isinstance(parsed, dict):
        raise ApiError("json_schema: must be an object")
    return parsed


@dataclass(frozen=True, slots=True)
class Choice:
    """One planned answer and the sequence that produces it."""

    answer: Answer
    generation: Generation

    @property
    def aborted(self) -> bool:
        return self.generation.made < self.generation.limit


@dataclass(frozen=True, slots=True)
class PromptWork:
    """The sequences of one prompt. ``primer`` fills the cache first when several answers share the prompt."""

    prompt: bytes
    choices: list[Choice]
    primer: Generation | None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that lay in the cache before this request."""
        return (self.primer or self.choices[0].generation).cached_tokens


def plan_prompt(
    worker: EmulatedWorker, sampling: Sampling, prompt: bytes, rid: str, *, leading_space: bool
) -> PromptWork:
    """Plans the answers to one prompt.

    With several choices SGLang first prefills the prompt once (``_handle_batch_request``), then samples
    from it.
    """
    tokens = count(prompt)
    if tokens == 0:
        raise ApiError("The prompt must not be empty.")
    room = worker.output_room(tokens, sampling.max_tokens)
    # Only what must be the same again depends on the prompt: hashing a long one takes its time.
    repeats = sampling.greedy or sampling.seed is not None
    prompt_seed = seed_of(prompt) if repeats else 0
    choices: list[Choice] = []
    for index in range(sampling.choices):
        if sampling.greedy:
            seed = prompt_seed
        elif sampling.seed is not None:
            seed = seed_of(str(prompt_seed), sampling.seed, index)
        else:
            seed = seed_of(rid, index)
        request = AnswerRequest(
            max_tokens=room,
            given=sampling.max_tokens is not None,
            seed=seed,
            tools=sampling.tools,
            must_call=sampling.must_call,
            several_calls=sampling.several_calls,
            json_schema=sampling.json_schema,
            json_wanted=sampling.json_wanted,
            ignore_eos=sampling.ignore_eos,
            stop=sampling.stop,
            leading_space=leading_space,
        )
        try:
            answer = plan_answer(request, worker.settings.length_rule)
        except SchemaError as error:
            raise ApiError(str(error)) from error
        own = rid if sampling.choices == 1 else f"{rid}_{index}"
        choices.append(Choice(answer, Generation(own, prompt, answer.tokens, room, sampling.priority)))
    primer = None
    if sampling.choices > 1:
        primer = Generation(f"{rid}_prompt", prompt, b"", 0, sampling.priority)
    return PromptWork(prompt, choices, primer)
