"""llama.cpp's server: slots from ``/props``, busy ones from ``/slots``; 503 while the model loads.

It cancels a request when its connection closes. Slots may share one KV cache or split it, and ``/props``
does not say which, so the pool's size stays unknown: the slots bind.
"""

from heddle_gateway.fleet.asking import Asking
from heddle_gateway.fleet.engines.description import (
    DEFAULT_SLOTS,
    Description,
    LoadSample,
    Vitals,
    text_or_none,
    whole_number,
)
from heddle_gateway.fleet.engines.openai_compatible import listed_models, model_cards, model_ids
from heddle_gateway.fleet.errors import BadAnswer, StillStarting
from heddle_gateway.fleet.features import EngineKind, Features


class LlamaCppEngine:
    kind = EngineKind.LLAMACPP

    async def describe(self, ask: Asking) -> Description | None:
        try:
            props = await ask.get_json("/props")
        except BadAnswer as error:
            if error.status == 503:
                raise StillStarting(str(error)) from error
            return None
        if "total_slots" not in props and "default_generation_settings" not in props:
            return None
        return Description(
            kind=self.kind,
            features=Features(loads=await _has_slots(ask)),
            models=model_ids(await model_cards(ask)),
            vitals=Vitals(),
            slots=whole_number(props.get("total_slots"), DEFAULT_SLOTS),
            version=text_or_none(props.get("build_info")),
        )

    async def check(self, ask: Asking) -> Vitals:
        reply = await ask.request("GET", "/health")
        if reply.status == 503:
            raise StillStarting(f"/health: {reply.excerpt()}")
        if reply.status != 200:
            raise BadAnswer(f"/health: HTTP {reply.status}", reply.status)
        return Vitals(models=await listed_models(ask))

    async def load(self, ask: Asking, kv_tokens: int) -> LoadSample:
        """Requests beyond the slots wait where nothing counts them: ``waiting`` is 0."""
        reply = await ask.request("GET", "/slots")
        slots = reply.json() if reply.status == 200 else None
        if not isinstance(slots, list):
            raise BadAnswer(f"/slots: HTTP {reply.status}", reply.status)
        busy = [slot for slot in slots if isinstance(slot, dict) and slot.get("is_processing") is True]
        return LoadSample(len(busy), 0, 0)


async def _has_slots(ask: Asking) -> bool:
    reply = await ask.request("GET", "/slots")
    return reply.status == 200
