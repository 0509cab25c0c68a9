"""Measures a live worker and makes its profile: by a ladder of batches sent to it, or from the counters it
keeps.

The ladder wants the worker to itself; other traffic counts as part of the worker's slowness. For each batch
size it sends short prompts, once for N output tokens and once for 2 N, and takes the difference; the largest
batches again with long prompts, for the price of context; and single prompts of two lengths, for the prefill
rate. Answers are not streamed, so that the client's own speed is no part of what is measured.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
from heddle_contracts.worker_profile import DegreeProfile, WorkerProfile

from heddle_planner.profiles.fitting import FitError, StepFit, StepSample, fit_moments, fit_steps
from heddle_planner.profiles.worker_client import Batch, WorkerClient, WorkerFacts, WorkerProfileError

__all__ = ["LadderSettings", "WorkerProfileError", "measure"]

SHORT_PROMPT = 32
REPEATS = 3
LONG_BATCHES = 2
"""Rungs, the largest that fit into the KV cache, that are repeated with long prompts."""


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """What to send. `degree`: the MP degree, where the worker does not tell it."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    tokens: int = 64
    long_prompt: int = 2048
    degree: int | None = None
    api_key: str | None = None


def measure(url: str, settings: LadderSettings, *, from_moments: bool) -> WorkerProfile:
    """The worker's profile, with the one MP degree it runs at.

    Raises WorkerProfileError if the worker fails, ValueError if a setting does not fit.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"URL: {url!r} has no scheme; give for example http://gpu1:30000")
    if sorted(set(settings.batches)) != list(settings.batches) or settings.batches[0] != 1:
        raise ValueError(
            f"--batches: must rise from 1, got {','.join(str(batch) for batch in settings.batches)}"
        )
    return asyncio.run(_measure(url, settings, from_moments=from_moments))


async def _measure(url: str, settings: LadderSettings, *, from_moments: bool) -> WorkerProfile:
    try:
        client = WorkerClient(url, settings.api_key)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ValueError(f"URL: {url!r}: {error}") from error
    async with client:
        facts = await client.facts()
        degree = settings.degree or facts.degree
        if not degree:
            raise ValueError(f"--degree: {url} does not tell its MP degree; give it")
        try:
            if from_moments:
                fit, prefill, how = await _from_moments(client, facts)
            else:
                fit, prefill, how = await _from_ladder(client, facts, settings)
        except FitError as error:
            raise WorkerProfileError(f"{url}: {error}") from error
    measured = DegreeProfile(
        batches=fit.batches,
        step_seconds=fit.step_seconds,
        seconds_per_context_token=fit.seconds_per_context_token,
        prefill_tokens_per_second=prefill,
        kv_tokens=facts.kv_tokens,
        slots=facts.slots or fit.batches[-1],
    )
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return WorkerProfile(
        model=facts.model,
        made_by="decode_moments" if from_moments else "ladder",
        sources={f"degree {degree}": f"{how}, {url}, {when}"},
        degrees={degree: measured},
    )


async def _from_moments(client: WorkerClient, facts: WorkerFacts) -> tuple[StepFit, float, str]:
    moments, tokens, micros = await client.moments()
    fit = fit_moments(moments, facts.slots or 1)
    prefill = tokens / micros * 1e6 if micros else 0.0
    return (
        fit,
        prefill,
        f"least squares over {moments.steps:.0f} decode steps; context is in the slope of the batch",
    )


async def _from_ladder(
    client: WorkerClient, facts: WorkerFacts, settings: LadderSettings
) -> tuple[StepFit, float, str]:
    short = min(SHORT_PROMPT, settings.long_prompt // 2)
    # The first request of a server compiles, allocates and warms up; it is nobody's sample.
    await client.generate(facts, 1, short, settings.tokens)
    most = 2 * settings.tokens
    rungs = [
        batch
        for batch in settings.batches
        if (not facts.slots or batch <= facts.slots) and _fits(facts, batch, short + most)
    ]
    samples = [await _rung(client, facts, batch, short, settings.tokens) for batch in rungs]
    long_rungs = [batch for batch in rungs if _fits(facts, batch, settings.long_prompt + most)]
    for batch in long_rungs[-LONG_BATCHES:]:
        samples.append(await _rung(client, facts, batch, settings.long_prompt, settings.tokens))
    prefill = await _prefill_rate(client, facts, short, settings.long_prompt)
    how = f"ladder of {settings.tokens} tokens at batches {', '.join(str(batch) for batch in rungs)}"
    return fit_steps(samples), prefill, how


def _fits(facts: WorkerFacts, batch: int, tokens_each: int) -> bool:
    return not facts.kv_tokens or batch * tokens_each <= facts.kv_tokens


async def _rung(client: WorkerClient, facts: WorkerFacts, batch: int, prompt: int, tokens: int) -> StepSample:
    """The steps by which an answer of twice the tokens takes longer: prefill, queue and network cancel."""
    once = await _quickest(client, facts, batch, prompt, tokens)
    twice = await _quickest(client, facts, batch, prompt, 2 * tokens)
    added = twice.seconds - once.seconds
    if added <= 0:
        raise FitError(
            f"{2 * tokens} tokens at batch {batch} took no longer than {tokens}; ask for more --tokens, of an"
            " idle worker"
        )
    context = twice.prompt_tokens + batch * 1.5 * tokens
    return StepSample(batch=batch, context=context, seconds=added / tokens)


async def _prefill_rate(client: WorkerClient, facts: WorkerFacts, short: int, long: int) -> float:
    """Uncached prompt tokens a second: what a longer prompt adds to one token. Zero where it adds nothing."""
    low = await _quickest(client, facts, 1, short, 1)
    high = await _quickest(client, facts, 1, long, 1)
    added = high.seconds - low.seconds
    return (high.prompt_tokens - low.prompt_tokens) / added if added > 0 else 0.0


async def _quickest(client: WorkerClient, facts: WorkerFacts, batch: int, prompt: int, tokens: int) -> Batch:
    """The quickest of a few: whatever disturbs a measurement makes it slower."""
    tries = [await client.generate(facts, batch, prompt, tokens) for _ in range(REPEATS)]
    return min(tries, key=lambda one: one.seconds)
