"""HTTP to the planner, behind a circuit breaker: a planner that is away costs one short try now and then.

Invariant: nothing here is on a step's path; whoever calls waits for the planner in a task of its own.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import httpx
from heddle_contracts.planning import Plan, PlanningRequest
from pydantic import ValidationError

PlannerState = Literal["absent", "starting", "ready", "slow", "away", "nonsense"]
"""absent: none is configured; starting: not asked yet; slow, away, nonsense: the last call came too late, did
not come about, or was answered with what cannot be. In these three the core's own estimates hold."""

FAILURES_TO_OPEN: Final = 3
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 15.0


class PlannerAway(Exception):
    """The planner cannot be asked now; the message says why."""


class PlannerRefused(Exception):
    """The planner does not take the request: its status, its words, the field at fault."""

    def __init__(self, status: int, detail: str, field: str | None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field


class PlannerClient:
    """One planner. ``timeout_s``: of a call for forecasts; ``plan_timeout_s``: of one for a plan. Raises
    ValueError for a URL that is none.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None,
        timeout_s: float,
        plan_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        where = httpx.URL(url)
        if where.scheme not in ("http", "https") or not where.host:
            raise ValueError(f"{url!r} is no URL such as http://planner:8100")
        self._http = httpx.AsyncClient(base_url=url, headers=headers, trust_env=False)
        self._timeout_s = timeout_s
        self._plan_timeout_s = plan_timeout_s
        self._clock = clock
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._closed_until = 0.0
        self.state: PlannerState = "starting"
        self.calls = 0
        self.failed_calls = 0
        self.last_error: str | None = None

    @property
    def pause_s(self) -> float:
        """Seconds until the planner may be asked again; 0 when it may be now."""
        return max(0.0, self._closed_until - self._clock())

    async def steps(self, body: bytes) -> dict[str, Any]:
        """The planner's answer to a StepBatch, not yet checked. Raises PlannerAway."""
        answer = await self._post("/planner/v1/steps", body, self._timeout_s)
        if answer.status_code != httpx.codes.OK:
            self._failed("nonsense", f"it answered {answer.status_code}: {answer.text[:200]}")
            raise PlannerAway(self.last_error)
        try:
            found = json.loads(answer.content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            self._failed("nonsense", "its answer is no JSON object")
            raise PlannerAway(self.last_error)
        self._succeeded()
        return found

    async def plan(self, request: PlanningRequest) -> Plan:
        """Raises PlannerAway, PlannerRefused."""
        body = request.model_dump_json().encode()
        answer = await self._post("/planner/v1/plans", body, self._plan_timeout_s)
        if answer.status_code == httpx.codes.OK:
            try:
                plan = Plan.model_validate_json(answer.content)
            except ValidationError as error:
                self._failed("nonsense", f"its plan cannot be: {error.errors()[0]['msg']}")
                raise PlannerAway(self.last_error) from error
            self._succeeded()
            return plan
        try:
            said = json.loads(answer.content)
            detail = said["detail"]
        except (ValueError, KeyError, TypeError):
            self._failed("nonsense", f"it answered {answer.status_code}: {answer.text[:200]}")
            raise PlannerAway(self.last_error) from None
        self._succeeded()
        if not isinstance(detail, str):  # FastAPI's own list of faults
            detail = json.dumps(detail)
        raise PlannerRefused(answer.status_code, detail, said.get("field"))

    async def greet(self) -> None:
        """Finds out whether it is there, and opens the connection that the first call will use."""
        try:
            answer = await self._send("GET", "/ready", None, self._timeout_s)
        except PlannerAway:
            return
        if answer.is_success:
            self._succeeded()
        else:
            self._failed("nonsense", f"GET /ready was answered {answer.status_code}")

    def distrust(self, why: str) -> None:
        """What it answered cannot be; counts as a failed call."""
        self._failed("nonsense", why)

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(self, path: str, body: bytes, timeout_s: float) -> httpx.Response:
        return await self._send("POST", path, body, timeout_s)

    async def _send(self, method: str, path: str, body: bytes | None, timeout_s: float) -> httpx.Response:
        if self.pause_s > 0:
            raise PlannerAway(self.last_error or "it failed a moment ago")
        self.calls += 1
        try:
            # httpx's own timeouts begin anew with every byte; this one bounds the whole call.
            async with asyncio.timeout(timeout_s):
                return await self._http.request(
                    method,
                    path,
                    content=body,
                    headers={"content-type": "application/json"},
                    timeout=timeout_s,
                )
        except (TimeoutError, httpx.TimeoutException):
            self._failed("slow", f"no answer within {timeout_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            self._failed("away", f"{type(error).__name__}: {error}")
        raise PlannerAway(self.last_error)

    def _succeeded(self) -> None:
        self.state = "ready"
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._closed_until = 0.0

    def _failed(self, state: PlannerState, why: str) -> None:
        self.state = state
        self.last_error = why
        self.failed_calls += 1
        self._failures += 1
        if self._failures >= FAILURES_TO_OPEN:
            self._closed_until = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
