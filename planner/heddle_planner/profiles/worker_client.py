"""Asks a live worker what it is, and has it generate. SGLang by its own routes, any other server by the
OpenAI ones.

Invariant: whatever the worker does wrong becomes a WorkerProfileError that says which route and what was
expected of it.
"""

import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

import httpx

from heddle_planner.profiles.fitting import Arrival, DecodeMoments

_WORDS = (
    "red",
    "oak",
    "sun",
    "map",
    "ice",
    "fox",
    "cup",
    "sea",
    "ink",
    "owl",
    "gem",
    "fog",
    "jar",
    "bee",
    "elm",
    "pie",
)
_CONNECT_S = 5.0
_ANSWER_S = 600.0
"""A ladder's largest batch may queue behind its own prefill for minutes on a slow worker."""


class WorkerProfileError(RuntimeError):
    """The worker cannot be reached or does not answer as a worker does."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What the worker says of itself; zero where it says nothing."""

    model: str
    is_sglang: bool
    degree: int
    slots: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer: arrivals in order and the tokens of its prompt."""

    sent_at: float
    arrivals: tuple[Arrival, ...]
    prompt_tokens: int


class WorkerClient:
    """One worker. Use as an async context manager."""

    def __init__(self, url: str, api_key: str | None, connections: int) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers=headers,
            trust_env=False,
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )
        self._url = url
        # Prompts must differ between runs too, or the worker's prefix cache answers for its prefill.
        self._random = random.Random()

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._http.aclose()

    async def facts(self) -> WorkerFacts:
        """Model, MP degree, slots and KV tokens, as far as the worker tells."""
        info = await self._get_object("/server_info")
        if "tp_size" in info:
            load = (await self._loads() or [{}])[0]
            return WorkerFacts(
                model=str(info.get("served_model_name") or info.get("model_path") or ""),
                is_sglang=True,
                degree=_count(info.get("tp_size")),
                slots=_count(load.get("max_running_requests")) or _count(info.get("max_running_requests")),
                kv_tokens=_count(load.get("max_total_num_tokens"))
                or _count(info.get("max_total_num_tokens")),
            )
        models = (await self._get_object("/v1/models")).get("data")
        if not isinstance(models, list) or not models or not isinstance(models[0], dict):
            raise WorkerProfileError(
                f"{self._url}: /v1/models lists no model; is this an OpenAI-compatible server?"
            )
        return WorkerFacts(
            model=str(models[0].get("id", "")), is_sglang=False, degree=0, slots=0, kv_tokens=0
        )

    async def moments(self) -> tuple[DecodeMoments, int, int]:
        """SGLang's decode sums over all its data-parallel ranks, uncached prompt tokens prefilled, and the
        microseconds that took.
        """
        sums = DecodeMoments(0, 0, 0, 0, 0, 0)
        tokens = micros = 0
        for load in await self._loads():
            values = load.get("decode_moments")
            if isinstance(values, list) and len(values) == 6:
                sums += DecodeMoments(*(float(value) for value in values))
            tokens += _count(load.get("total_prefill_uncached_tokens"))
            micros += _count(load.get("total_prefill_busy_us"))
        if sums.steps == 0:
            raise WorkerProfileError(
                f"{self._url}: /v1/loads has no decode_moments; it is no SGLang of 0.5.20 or later, or it"
                f" has decoded nothing yet"
            )
        return sums, tokens, micros

    async def generate(self, facts: WorkerFacts, prompt_tokens: int, output_tokens: int) -> Answer:
        """Streams an answer of exactly `output_tokens` tokens to a prompt that nobody sent before."""
        if facts.is_sglang:
            return await self._generate_native(prompt_tokens, output_tokens)
        return await self._complete(facts.model, prompt_tokens, output_tokens)

    async def _generate_native(self, prompt_tokens: int, output_tokens: int) -> Answer:
        body = {
            "input_ids": [self._random.randrange(100, 1000) for _ in range(prompt_tokens)],
            "sampling_params": {"max_new_tokens": output_tokens, "ignore_eos": True, "temperature": 0},
            "stream": True,
        }
        arrivals: list[Arrival] = []
        sent_at, prompt = time.monotonic(), prompt_tokens
        async for piece in self._stream("/generate", body):
            meta = piece.get("meta_info")
            if not isinstance(meta, dict):
                raise WorkerProfileError(
                    f"{self._url}: /generate streamed no meta_info: {json.dumps(piece)[:200]}"
                )
            prompt = _count(meta.get("prompt_tokens")) or prompt
            made = _count(meta.get("completion_tokens"))
            if made > 0 and (not arrivals or made > arrivals[-1].tokens):
                arrivals.append(Arrival(time.monotonic(), made))
        return self._answer("/generate", sent_at, arrivals, prompt)

    async def _complete(self, model: str, prompt_tokens: int, output_tokens: int) -> Answer:
        body = {
            "model": model,
            "prompt": " ".join(self._random.choices(_WORDS, k=prompt_tokens)),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent_at, times = time.monotonic(), []
        prompt, made = prompt_tokens, 0
        async for piece in self._stream("/v1/completions", body):
            if piece.get("choices"):
                times.append(time.monotonic())
            if isinstance(usage := piece.get("usage"), dict):
                prompt = _count(usage.get("prompt_tokens")) or prompt
                made = _count(usage.get("completion_tokens")) or made
        # A piece may hold several tokens: spread what the usage says evenly.
        per_piece = max(1.0, made / len(times)) if times else 1.0
        arrivals = [Arrival(at, round(per_piece * number)) for number, at in enumerate(times, start=1)]
        return self._answer("/v1/completions", sent_at, arrivals, prompt)

    def _answer(self, route: str, sent_at: float, arrivals: list[Arrival], prompt: int) -> Answer:
        if not arrivals:
            raise WorkerProfileError(f"{self._url}: {route} streamed no token")
        return Answer(sent_at, tuple(arrivals), prompt)

    async def _stream(self, route: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The JSON events of a streamed answer."""
        try:
            async with self._http.stream("POST", route, json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    raise WorkerProfileError(
                        f"{self._url}: {route} answered {response.status_code}: {text[:200]}"
                    )
                async for line in response.aiter_lines():
                    data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                    if not data or data == "[DONE]":
                        continue
                    piece = json.loads(data)
                    if not isinstance(piece, dict) or "error" in piece:
                        raise WorkerProfileError(f"{self._url}: {route} streamed an error: {data[:200]}")
                    yield piece
        except httpx.HTTPError as error:
            raise self._unreachable(route, error) from error
        except ValueError as error:
            raise WorkerProfileError(f"{self._url}: {route} streamed what is not JSON: {error}") from error

    async def _loads(self) -> list[dict[str, Any]]:
        loads = (await self._get_object("/v1/loads")).get("loads")
        return [load for load in loads if isinstance(load, dict)] if isinstance(loads, list) else []

    async def _get_object(self, route: str) -> dict[str, Any]:
        """A JSON object, or an empty one where the worker has no such route."""
        try:
            response = await self._http.get(route)
        except httpx.HTTPError as error:
            raise self._unreachable(route, error) from error
        if response.status_code in (401, 403):
            raise WorkerProfileError(f"{self._url}: {route} answered {response.status_code}; give --api-key")
        if response.status_code != 200:
            return {}
        try:
            found = response.json()
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _unreachable(self, route: str, error: httpx.HTTPError) -> WorkerProfileError:
        return WorkerProfileError(f"{self._url}: {route} failed: {type(error).__name__}: {error}")


def _count(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else 0
