"""Who may tell a shim to act: with a key, only who knows it; what merely asks is open, as other shims do."""

import hmac
from typing import Final

from heddle_contracts.admin import Problem
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

ASKING: Final = frozenset({"GET", "HEAD"})


class KeyRequired:
    """Around the shim's app. The key is the engine's: the gateway has it for the worker, and sends it."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in ASKING:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                problem = Problem(
                    title="Unauthorized",
                    status=401,
                    detail="authorization: send Bearer and the engine's API key",
                    field="authorization",
                )
                answer = Response(
                    problem.model_dump_json(exclude_none=True),
                    status_code=401,
                    media_type="application/problem+json",
                )
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)
