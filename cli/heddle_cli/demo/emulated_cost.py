"""What no schedule can beat, by the emulated workers' own cost model.

The constants come from the workers (`/server_info`: ``heddle_timing``, ``tp_size``,
``max_running_requests``), so the bound holds for exactly the cluster that ran. Times are emulated seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle_cli.replay.agent import ReplaySettings
from heddle_cli.replay.loader import RecordedTrajectory


@dataclass(frozen=True, slots=True)
class WorkerCost:
    """Costs of one emulated worker at its MP degree (heddle_shim.emulator.timing)."""

    degree: int
    slots: int
    decode_base_s: float
    decode_request_s: float
    decode_context_s: float
    prefill_fixed_s: float
    prefill_token_s: float
    prefill_context_s: float

    @classmethod
    def of(cls, server_info: Mapping[str, Any]) -> "WorkerCost":
        """Raises KeyError where the server is no emulated worker."""
        timing, degree = server_info["heddle_timing"], int(server_info["tp_size"])
        compute = degree ** timing["scaling"]
        return cls(
            degree=degree,
            slots=int(server_info["max_running_requests"]),
            decode_base_s=timing["decode_fixed_s"] + timing["decode_weights_s"] / degree,
            decode_request_s=timing["decode_request_s"] / compute,
            decode_context_s=timing["decode_context_s"] / degree,
            prefill_fixed_s=timing["prefill_fixed_s"],
            prefill_token_s=timing["prefill_token_s"] / compute,
            prefill_context_s=timing["prefill_context_s"] / compute,
        )

    def prefill_s(self, new: int, before: int) -> float:
        work = new * self.prefill_token_s + new * (before + new / 2) * self.prefill_context_s
        return self.prefill_fixed_s + work

    def decode_s(self, tokens: int, context: int) -> float:
        """``tokens`` of one request alone, whose context was ``context`` before the first."""
        return tokens * (self.decode_base_s + self.decode_request_s) + self._reading_s(tokens, context)

    def least_share_s(self, tokens: int, context: int) -> float:
        """The worker's time that these tokens take at the least: the batch full, everything shared fairly."""
        each = self.decode_base_s / self.slots + self.decode_request_s
        return tokens * each + self._reading_s(tokens, context)

    def _reading_s(self, tokens: int, context: int) -> float:
        return self.decode_context_s * (tokens * context + tokens * (tokens - 1) / 2)


def alone_s(
    trajectory: RecordedTrajectory, worker: WorkerCost, settings: ReplaySettings, shared: int = 0
) -> float:
    """The trajectory's whole time, tool gaps included, with a worker to itself and every prefix cached.
    ``shared``: tokens of its prompt that another may have computed before. The first token of an answer comes
    with the prefill.
    """
    total = 0.0
    cached = min(shared, trajectory.prompt_tokens - 1)
    for index, step in enumerate(trajectory.steps):
        context = trajectory.context_before(index)
        total += worker.prefill_s(max(1, context - cached), cached)
        total += worker.decode_s(step.output_tokens - 1, context)
        cached = context + step.output_tokens
        if index + 1 < len(trajectory.steps):
            gap = settings.default_gap_s if step.tool_seconds is None else step.tool_seconds
            total += min(gap, settings.max_gap_s)
    return total


def lower_bound_s(
    trajectories: Sequence[RecordedTrajectory], workers: Sequence[WorkerCost], settings: ReplaySettings
) -> float:
    """max(longest trajectory alone on its best worker, all decode work over all workers' full throughput).

    Work is split over the workers as if it could be cut freely, with full batches and no prefill.
    """
    prompts: dict[str, list[int]] = {}
    for one in trajectories:
        prompts.setdefault(one.task_id, []).append(one.prompt_tokens)
    shared = {task: min(tokens) if len(tokens) > 1 else 0 for task, tokens in prompts.items()}
    longest = max(
        min(alone_s(one, worker, settings, shared[one.task_id]) for worker in workers) for one in trajectories
    )
    rates = []
    for worker in workers:
        seconds = sum(
            worker.least_share_s(step.output_tokens - 1, one.context_before(index))
            for one in trajectories
            for index, step in enumerate(one.steps)
        )
        if seconds == 0.0:  # answers of one token each: nothing is decoded
            return longest
        rates.append(1.0 / seconds)
    return max(longest, 1.0 / sum(rates))
