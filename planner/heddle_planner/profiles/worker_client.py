"""Asks a live worker what it is, and has it generate. SGLang by its own routes, any other server by the
OpenAI ones.

Invariant: whatever the worker does wrong becomes a WorkerProfileError that says which route and what was
expected of it.
"""

import random
import time
from dataclasses import dataclass
from typing import Any, Self

import httpx

from heddle_planner.profiles.fitting import DecodeMoments

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
class Batch:
    """A batch of prompts answered: seconds until all were, and the prompt tokens of all."""

    seconds: float
    prompt_tokens: int


class WorkerClient:
    """One worker. Use as an async context manager."""

    def __init__(self, url: str, api_key: str | None) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers=headers,
            trust_env=False,
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
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
                f"{self._url}: /v1/loads has no decode_moments; it is no recent SGLang (0.5.23 has them), or"
                " has decoded nothing yet"
            )
        return sums, tokens, micros

    async def generate(self, facts: WorkerFacts, batch: int, prompt_tokens: int, output_tokens: int) -> Batch:
        """Times one request of `batch` prompts that nobody sent before, with `output_tokens` tokens each."""
        if facts.is_sglang:
            return await self._generate_native(batch, prompt_tokens, output_tokens)
        return await self._complete(facts.model, batch, prompt_tokens, output_tokens)

    async def _generate_native(self, batch: int, prompt_tokens: int, output_tokens: int) -> Batch:
        prompts = [[self._random.randrange(100, 1000) for _ in range(prompt_tokens)] for _ in range(batch)]
        sampling = {"max_new_tokens": output_tokens, "ignore_eos": True, "temperature": 0}
        seconds, answers = await self._timed("/generate", {"input_ids": prompts, "sampling_params": sampling})
        metas = [
            answer["meta_info"]
            for answer in (answers if isinstance(answers, list) else [])
            if isinstance(answer, dict) and isinstance(answer.get("meta_info"), dict)
        ]
        if len(metas) != batch:
            raise WorkerProfileError(f"{self._url}: /generate answered {len(metas)} of {batch} prompts")
        made = sum(_count(meta.get("completion_tokens")) for meta in metas)
        self._expect("/generate", made, batch * output_tokens)
        return Batch(seconds, sum(_count(meta.get("prompt_tokens")) for meta in metas))

    async def _complete(self, model: str, batch: int, prompt_tokens: int, output_tokens: int) -> Batch:
        body = {
            "model": model,
            "prompt": [" ".join(self._random.choices(_WORDS, k=prompt_tokens)) for _ in range(batch)],
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        seconds, answer = await self._timed("/v1/completions", body)
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if not isinstance(usage, dict):
            raise WorkerProfileError(f"{self._url}: /v1/completions answered without usage")
        self._expect("/v1/completions", _count(usage.get("completion_tokens")), batch * output_tokens)
        return Batch(seconds, _count(usage.get("prompt_tokens")))

    def _expect(self, route: str, made: int, wanted: int) -> None:
        if made != wanted:
            raise WorkerProfileError(
                f"{self._url}: {route} made {made} tokens where {wanted} were asked for; the ladder needs a"
                " worker that honours ignore_eos and has room in its context"
            )

    async def _timed(self, route: str, body: dict[str, Any]) -> tuple[float, Any]:
        """Seconds until the whole answer was there, and the answer."""
        started = time.monotonic()
        try:
            response = await self._http.post(route, json=body)
        except httpx.HTTPError as error:
            raise self._unreachable(route, error) from error
        seconds = time.monotonic() - started
        if response.status_code != 200:
            raise WorkerProfileError(
                f"{self._url}: {route} answered {response.status_code}: {response.text[:200]}"
            )
        try:
            return seconds, response.json()
        except ValueError as error:
            raise WorkerProfileError(f"{self._url}: {route} answered what is not JSON: {error}") from error

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
