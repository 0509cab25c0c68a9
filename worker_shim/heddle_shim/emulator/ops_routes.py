"""What an operator, a gateway or an RL framework asks a worker beside generating: health, facts, load,
control.
"""

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from heddle_shim.emulator.clock import ScaledClock
from heddle_shim.emulator.completion_reply import packed_ids, prompts_of
from heddle_shim.emulator.engine_config import PauseMode
from heddle_shim.emulator.errors import ApiError
from heddle_shim.emulator.metrics import exposition
from heddle_shim.emulator.request_fields import Body, flag, text
from heddle_shim.emulator.tokens import VOCABULARY_SIZE, count, decode, unpack
from heddle_shim.emulator.worker import SGLANG_VERSION, EmulatedWorker

Handler = Callable[[Request], Awaitable[Response]]


class OpsRoutes:
    """The handlers of one worker."""

    def __init__(self, worker: EmulatedWorker) -> None:
        self._worker = worker
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        """All routes but the generating ones."""
        get: dict[str, Handler] = {
            "/v1/models": self.models,
            "/health": self.health,
            "/health_generate": self.health,
            "/ping": self.health,
            "/ready": self.ready,
            "/server_info": self.server_info,
            "/get_server_info": self.server_info,
            "/model_info": self.model_info,
            "/get_model_info": self.model_info,
            "/v1/loads": self.loads,
            "/metrics": self.metrics,
        }
        post: dict[str, Handler] = {
            "/abort_request": self.abort,
            "/pause_generation": self.pause,
            "/continue_generation": self.resume,
            "/tokenize": self.tokenize,
            "/v1/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/v1/detokenize": self.detokenize,
        }
        routes = [Route(path, _answering(handler), methods=["GET"]) for path, handler in get.items()]
        routes += [Route(path, _answering(handler), methods=["POST"]) for path, handler in post.items()]
        # SGLang answers both methods here.
        routes.append(Route("/flush_cache", _answering(self.flush_cache), methods=["GET", "POST"]))
        return routes

    async def models(self, _: Request) -> Response:
        settings = self._worker.settings
        card = {
            "id": settings.model,
            "object": "model",
            "created": self._started,
            "owned_by": "sglang",
            "root": settings.model,
            "parent": None,
            "max_model_len": settings.context_length,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def health(self, _: Request) -> Response:
        return Response(status_code=200)

    async def ready(self, _: Request) -> Response:
        return Response(status_code=503 if self._worker.engine.paused else 200)

    async def server_info(self, request: Request) -> Response:
        worker = self._worker
        settings, engine = worker.settings, worker.engine
        clock = worker.driver.clock
        facts: dict[str, Any] = {
            **asdict(settings.engine),
            "version": SGLANG_VERSION,
            "model_path": settings.model,
            "served_model_name": settings.model,
            "tokenizer_path": settings.model,
            "tp_size": engine.costs.degree,
            "dp_size": 1,
            "pp_size": 1,
            "context_length": settings.context_length,
            "max_total_num_tokens": engine.pool.total,
            "max_total_tokens": engine.pool.total,
            "schedule_policy": "fcfs",
            "radix_eviction_policy": "lru",
            "disaggregation_mode": "null",
            "enable_metrics": True,
            "enable_cache_report": settings.enable_cache_report,
            "weight_version": "default",
            "kv_events": None,
            "internal_states": [self._load()],
            "heddle_emulated": True,
            "heddle_instance_id": worker.instance_id,
            "heddle_shim_url": str(request.base_url).rstrip("/"),
            "heddle_speed": clock.speed if isinstance(clock, ScaledClock) else None,
            "heddle_length_rule": settings.length_rule,
            "heddle_timing": asdict(engine.costs.profile),
        }
        return JSONResponse(facts)

    async def model_info(self, _: Request) -> Response:
        settings = self._worker.settings
        return JSONResponse(
            {
                "model_path": settings.model,
                "tokenizer_path": settings.model,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "heddle_emulated",
                "architectures": ["HeddleEmulatedForCausalLM"],
                "vocab_size": VOCABULARY_SIZE,
            }
        )

    async def loads(self, _: Request) -> Response:
        load = self._load()
        totals = {key: load[key] for key in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")}
        return JSONResponse(
            {
                "timestamp": time.time(),
                "version": SGLANG_VERSION,
                "dp_rank_count": 1,
                "loads": [load],
                "aggregate": totals,
            }
        )

    def _load(self) -> dict[str, Any]:
        """One entry of /v1/loads. Times and rates are simulated seconds."""
        self._worker.driver.catch_up()
        engine = self._worker.engine
        pool, totals = engine.pool, engine.totals
        used, running = engine.used_tokens(), engine.running_count()
        uncached = 0
        for generation in engine.waiting:
            uncached += generation.prompt_tokens + generation.made
        return {
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": len(engine.waiting),
            "num_waiting_uncached_tokens": uncached,
            "num_used_tokens": used,
            "num_total_tokens": used + uncached,
            "num_active_tokens": used,
            "max_total_num_tokens": pool.total,
            "max_running_requests": engine.config.max_running_requests,
            "token_usage": used / pool.total,
            "gen_throughput": engine.throughput(),
            "cache_hit_rate": totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0,
            "utilization": running / engine.config.max_running_requests,
            "total_prefill_uncached_tokens": totals.prefill_tokens,
            "total_prefill_busy_us": int(totals.prefill_s * 1e6),
            "decode_moments": totals.decode_moments(),
            "memory": {"weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": pool.total},
            "queues": {
                "waiting": len(engine.waiting),
                "grammar": 0,
                "paused": len(engine.live()) if engine.paused else 0,
                "retracted": sum(1 for generation in engine.waiting if generation.retractions),
                "prealloc_ready": 0,
            },
        }

    async def metrics(self, _: Request) -> Response:
        worker = self._worker
        worker.driver.catch_up()
        text = exposition(worker.engine, worker.metrics, worker.settings.model)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def flush_cache(self, _: Request) -> Response:
        if self._worker.driver.flush_cache():
            return PlainTextResponse("Cache flushed.\nPlease check backend logs for more details.\n")
        return PlainTextResponse("Flush cache failed: requests are in flight.\n", status_code=400)

    async def abort(self, request: Request) -> Response:
        body = await _object(request)
        rid = text(body, "rid", "") or ""
        if not rid and not flag(body, "abort_all", False):
            raise ApiError("rid: give one, or abort_all")
        # A prefix matches, so the empty one is all.
        self._worker.driver.abort("" if flag(body, "abort_all", False) else rid)
        return Response(status_code=200)

    async def pause(self, request: Request) -> Response:
        mode = text(await _object(request), "mode", PauseMode.ABORT) or ""
        if mode not in list(PauseMode):
            raise ApiError(f"mode: must be one of {', '.join(PauseMode)}")
        self._worker.driver.pause(PauseMode(mode))
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request: Request) -> Response:
        await _object(request)
        self._worker.driver.resume()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def tokenize(self, request: Request) -> Response:
        body = await _object(request)
        prompts = prompts_of(self._worker.memo, body.get("prompt"), "prompt")
        single = isinstance(body.get("prompt"), str)
        tokens = [unpack(prompt) for prompt in prompts]
        counts = [count(prompt) for prompt in prompts]
        return JSONResponse(
            {
                "tokens": tokens[0] if single else tokens,
                "count": counts[0] if single else counts,
                "max_model_len": self._worker.settings.context_length,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        tokens = (await _object(request)).get("tokens")
        if not isinstance(tokens, list):
            raise ApiError("tokens: must be a list of ids, or a list of such lists")
        if tokens and all(isinstance(one, list) for one in tokens):
            texts = [decode(packed_ids(one, f"tokens[{index}]")) for index, one in enumerate(tokens)]
            return JSONResponse({"text": texts})
        return JSONResponse({"text": decode(packed_ids(tokens, "tokens"))})


async def _object(request: Request) -> Body:
    """The JSON object of a request; no body is an empty one."""
    raw = await request.body()
    if not raw:
        return {}
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise ApiError(f"Invalid JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError("The request body must be a JSON object")
    return body


def _answering(handler: Handler) -> Handler:
    """The handler with its API errors turned into answers."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            return JSONResponse(error.flat(), status_code=error.status)

    return answer
