"""One emulated worker: an engine with its driver, its model's name and limits, and what it tells about
itself.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from heddle_shim.emulator.answer import LengthRule
from heddle_shim.emulator.clock import Clock
from heddle_shim.emulator.driver import EngineDriver
from heddle_shim.emulator.engine import Engine
from heddle_shim.emulator.engine_config import EngineConfig
from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.generation import Generation
from heddle_shim.emulator.histories import Histories
from heddle_shim.emulator.metrics import RequestMetrics
from heddle_shim.emulator.shim_side import EmulatedEngineSide
from heddle_shim.emulator.synthetic_page import MOVED_PAGE_TOKENS
from heddle_shim.emulator.timing import StepCosts
from heddle_shim.emulator.tokens import TokenMemo

SGLANG_VERSION: Final = "0.5.23"


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """An answer of /v1/responses, and the items of the conversation up to and with it."""

    response: dict[str, Any]
    history: list[Any]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What one worker is. ``disconnect_delay_s`` is real seconds between a hang-up and the abort; SGLang
    needs 2-4.
    """

    model: str = "heddle-emulated-8b"
    context_length: int = 262_144
    length_rule: LengthRule = LengthRule.MAX_TOKENS
    enable_cache_report: bool = True
    disconnect_delay_s: float = 0.0
    moved_page: int = MOVED_PAGE_TOKENS
    """Tokens of a page that is moved to another worker; a prefix is moved in whole ones."""
    engine: EngineConfig = field(default_factory=EngineConfig)


class EmulatedWorker:
    """Everything the HTTP routes of one port need."""

    def __init__(self, settings: WorkerSettings, costs: StepCosts, clock: Clock, memo: TokenMemo) -> None:
        self.settings: Final = settings
        self.memo: Final = memo
        self.metrics: Final = RequestMetrics()
        self.engine: Final = Engine(settings.engine, costs)
        self.driver: Final = EngineDriver(self.engine, clock, self._note_finished)
        self.stored: Final[dict[str, StoredResponse]] = {}
        """Answers of /v1/responses by id. Unbounded, as SGLang's is: one life of a test."""
        self.instance_id: Final = uuid.uuid4().hex
        self._histories = Histories(self.engine.pool.total)
        self.shim_side: Final = EmulatedEngineSide(
            self.engine,
            self.driver,
            self._histories,
            model=settings.model,
            version=SGLANG_VERSION,
            moved_page=settings.moved_page,
        )

    def _note_finished(self, generation: Generation) -> None:
        self.metrics.observe(generation)
        self._histories.note(generation)

    def output_room(self, prompt_tokens: int, wanted: int | None) -> int:
        """Output tokens a request may have; ``wanted`` is its max_tokens.

        Raises:
            ApiError: the prompt, or prompt and max_tokens together, exceed the context. Clients know these
            texts
                (tokenizer_manager._validate_one_request), so they are SGLang's.
        """
        limit = self.settings.context_length
        if prompt_tokens >= limit:
            raise ApiError(
                f"The input ({prompt_tokens} tokens) is longer than the model's context length "
                f"({limit} tokens)."
            )
        if wanted is not None and prompt_tokens + wanted > limit:
            raise ApiError(
                f"Requested token count exceeds the model's maximum context length of {limit} tokens. "
                f"You requested a total of {prompt_tokens + wanted} tokens: {prompt_tokens} tokens from the "
                f"input messages and {wanted} tokens for the completion. Please reduce the number of tokens "
                "in the input messages or the completion to fit within the limit."
            )
        pool = self.engine.pool.total
        if prompt_tokens >= pool:
            raise ApiError(
                f"Input length ({prompt_tokens} tokens) exceeds the maximum allowed length ({pool - 1} "
                "tokens). Use a shorter input or enable --allow-auto-truncate."
            )
        room = min(limit, pool) - prompt_tokens
        return room if wanted is None else min(wanted, room)
