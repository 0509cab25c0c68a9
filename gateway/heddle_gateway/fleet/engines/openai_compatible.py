"""Any server with ``GET /v1/models``: steps can be sent to it, nothing else is assumed."""

from typing import Any

from heddle_gateway.fleet.asking import Asking
from heddle_gateway.fleet.engines.description import Description, LoadSample, Vitals, whole_number
from heddle_gateway.fleet.errors import BadAnswer, StillStarting
from heddle_gateway.fleet.features import EngineKind, Features

MAX_MODELS = 1000


class OpenAICompatibleEngine:
    kind = EngineKind.OPENAI

    async def describe(self, ask: Asking) -> Description | None:
        cards = await model_cards(ask)
        return Description(
            self.kind, Features(), model_ids(cards), Vitals(), context_length=context_length(cards)
        )

    async def check(self, ask: Asking) -> Vitals:
        return Vitals(models=model_ids(await model_cards(ask)))

    async def load(self, ask: Asking, kv_tokens: int) -> LoadSample:
        raise BadAnswer("an OpenAI-compatible server reports no load")


async def model_cards(ask: Asking) -> list[dict[str, Any]]:
    """The entries of ``/v1/models``. Raises BadAnswer where there is no such list."""
    try:
        found = await ask.get_json("/v1/models")
    except BadAnswer as error:
        if error.status == 503:
            raise StillStarting(str(error)) from error
        raise
    cards = found.get("data")
    if not isinstance(cards, list):
        raise BadAnswer("/v1/models: no list named data", 200)
    return [card for card in cards[:MAX_MODELS] if isinstance(card, dict)]


async def listed_models(ask: Asking) -> tuple[str, ...]:
    """Names at ``/v1/models``; none where there is no such list now."""
    try:
        return model_ids(await model_cards(ask))
    except (BadAnswer, StillStarting):
        return ()


def context_length(cards: list[dict[str, Any]]) -> int | None:
    """The longest prompt with its answer, in tokens, that all of the models take; None where no card says."""
    said = (whole_number(card.get("max_model_len"), 0) for card in cards)
    return min((length for length in said if length), default=None)


def model_ids(cards: list[dict[str, Any]]) -> tuple[str, ...]:
    ids = (card.get("id") for card in cards)
    return tuple(dict.fromkeys(model for model in ids if isinstance(model, str) and 0 < len(model) <= 512))
