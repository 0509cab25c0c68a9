"""The shim's HTTP routes for moving KV; the same for SGLang's shim and for the emulated engine.

POST   /shim/v1/migrations         202 and the status; 409 where too many run
GET    /shim/v1/migrations         all that are remembered
GET    /shim/v1/migrations/{id}    ?wait=S holds the answer until it has ended, at most S seconds
DELETE /shim/v1/migrations/{id}    cancels it
GET    /shim/v1/handshake          who stands here, what fits
GET    /shim/v1/health             503 while the engine is dead
GET    /shim/v1/ready              503 while the engine serves nothing: dead, or not there yet
"""

import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from heddle_contracts.admin import Problem
from heddle_contracts.kv import (
    Handshake,
    MigrationList,
    MigrationRequest,
    MigrationStatus,
    ShimHealth,
)
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from heddle_shim.transfer.engine_side import EngineSide
from heddle_shim.transfer.migrations import Migrations, TooManyMigrations, UnknownMigration
from heddle_shim.transfer.transport import Receiver

MAX_WAIT_S: Final = 60.0
MAX_BODY_BYTES: Final = 96 << 20
"""A million page hashes in JSON."""

SERVING: Final = frozenset({"ready", "busy"})
"""States of an engine that takes requests; a busy one is silent for a while."""

Handler = Callable[[Request], Awaitable[Response]]


class MigrationRoutes:
    """Handlers over one engine's migrations and receivers. ``shim_version`` is shown in the handshake."""

    def __init__(
        self,
        engine: EngineSide,
        migrations: Migrations,
        receivers: Mapping[str, Receiver],
        *,
        shim_version: str,
    ) -> None:
        self._engine = engine
        self._migrations = migrations
        self._receivers = receivers
        self._version = shim_version
        self.instance: Final = uuid.uuid4().hex
        """Another one at each start."""

    def routes(self) -> list[Route]:
        """To be mounted at the root of the shim's app."""
        one = "/shim/v1/migrations/{migration_id}"
        return [
            Route("/shim/v1/migrations", self.start, methods=["POST"]),
            Route("/shim/v1/migrations", self.list, methods=["GET"]),
            Route(one, self.status, methods=["GET"]),
            Route(one, self.cancel, methods=["DELETE"]),
            Route("/shim/v1/handshake", self.handshake, methods=["GET"]),
            Route("/shim/v1/health", self.health, methods=["GET"]),
            Route("/shim/v1/ready", self.ready, methods=["GET"]),
        ]

    async def start(self, request: Request) -> Response:
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    return _problem(413, "Content Too Large", f"more than {MAX_BODY_BYTES} bytes", None)
            asked = MigrationRequest.model_validate_json(bytes(body))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or None
            return _problem(422, "Unprocessable Content", f"{field or 'body'}: {first['msg']}", field)
        except ClientDisconnect:
            return Response(status_code=400)
        try:
            return _json(self._migrations.start(asked), 202)
        except TooManyMigrations as error:
            return _problem(409, "Conflict", str(error), None)

    async def list(self, _: Request) -> Response:
        return _json(MigrationList(items=self._migrations.list()))

    async def status(self, request: Request) -> Response:
        asked = request.query_params.get("wait", "0")
        try:
            seconds = min(MAX_WAIT_S, max(0.0, float(asked)))
        except ValueError:
            return _problem(422, "Unprocessable Content", f"wait: {asked!r} is no number of seconds", "wait")
        return await self._one(request, lambda name: self._migrations.wait(name, seconds))

    async def cancel(self, request: Request) -> Response:
        return await self._one(request, self._migrations.cancel)

    async def handshake(self, _: Request) -> Response:
        return _json(self.describe())

    def describe(self) -> Handshake:
        """The handshake, for whoever registers this shim."""
        return Handshake(
            shim_version=self._version,
            instance=self.instance,
            engine=self._engine.facts(),
            namespace=self._engine.namespace(),
            transports={name: receiver.address for name, receiver in self._receivers.items()},
            transfer_bytes_s=self._migrations.rate,
            cannot_migrate=self._engine.cannot_migrate(),
        )

    async def health(self, _: Request) -> Response:
        return _json(self._health(), 503 if self._engine.state() == "dead" else 200)

    async def ready(self, _: Request) -> Response:
        return _json(self._health(), 200 if self._engine.state() in SERVING else 503)

    def _health(self) -> ShimHealth:
        arriving = sum(receiver.arriving for receiver in set(self._receivers.values()))
        return ShimHealth(
            instance=self.instance,
            engine=self._engine.state(),
            migrations=self._migrations.running + arriving,
        )

    async def _one(self, request: Request, act: Callable[[str], Awaitable[MigrationStatus]]) -> Response:
        name = str(request.path_params["migration_id"])
        try:
            return _json(await act(name))
        except UnknownMigration:
            detail = f"no migration {name[:128]!r} is remembered here; GET /shim/v1/migrations lists them"
            return _problem(404, "Not Found", detail, None)


def _json(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status_code=status, media_type="application/json")


def _problem(status: int, title: str, detail: str, field: str | None) -> Response:
    problem = Problem(title=title, status=status, detail=detail, field=field)
    text = json.dumps(problem.model_dump(exclude_none=True))
    return Response(text, status_code=status, media_type="application/problem+json")
