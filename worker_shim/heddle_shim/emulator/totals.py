"""Sums over all that an engine has done since its start."""

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    """Counts are of requests or tokens, times are simulated seconds."""

    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    """Of admitted requests; ``cached_tokens`` is the part of them found in the prefix tree."""
    cached_tokens: int = 0
    output_tokens: int = 0
    retractions: int = 0
    """Sequences sent back to the queue, the preempted ones included."""
    preemptions: int = 0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_steps: int = 0
    decode_batch: int = 0
    decode_s: float = 0.0
    decode_batch_squared: int = 0
    decode_batch_s: float = 0.0
    decode_tokens: int = 0

    def prefilled(self, tokens: int, busy: float) -> None:
        """One prefill batch."""
        self.prefill_tokens += tokens
        self.prefill_s += busy

    def decoded(self, steps: int, batch: int, busy: float) -> None:
        """``steps`` decode steps of an unchanging batch that took ``busy`` seconds in all."""
        self.output_tokens += steps * batch
        self.decode_steps += steps
        self.decode_batch += steps * batch
        self.decode_s += busy
        self.decode_batch_squared += steps * batch * batch
        self.decode_batch_s += batch * busy
        self.decode_tokens += steps * batch

    def decode_moments(self) -> list[float]:
        """[n, Sb, St, Sb2, Sbt, Sgen] of /v1/loads, over decode steps of batch b and time t in microseconds.

        Source: SGLang 0.5.23, managers/scheduler.py, _accumulate_decode_moment.
        """
        return [
            self.decode_steps,
            self.decode_batch,
            1e6 * self.decode_s,
            self.decode_batch_squared,
            1e6 * self.decode_batch_s,
            self.decode_tokens,
        ]
