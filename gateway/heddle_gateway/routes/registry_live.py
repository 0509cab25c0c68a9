"""Steps in flight as RL frameworks ask for them: abort by rid, abort all, close a session."""

from collections.abc import Callable, Mapping, Sequence

from heddle_gateway.identity.ids import asked_id
from heddle_gateway.identity.keys import tenant_of
from heddle_gateway.live.driver import Driver
from heddle_gateway.routes.registry import AttemptRef
from heddle_gateway.running_step import RunningSteps


class FrameworkView:
    """Fulfils routes.registry.LiveSteps."""

    def __init__(
        self,
        steps: RunningSteps,
        driver: Driver,
        abort_elsewhere: Callable[[str | None], None] = lambda rid: None,
    ) -> None:
        self._steps = steps
        self._driver = driver
        self._abort_elsewhere = abort_elsewhere

    def attempts_of(self, rid: str) -> Sequence[AttemptRef]:
        """Attempts that answer to exactly this id: the caller's own, or the one minted for the worker."""
        return [
            AttemptRef(attempt.dispatch.worker, attempt.dispatch.generation, attempt.rid)
            for attempt in self._steps.attempts_of(rid)
        ]

    def end_waiting(self, rid: str | None) -> int:
        """Ends steps as aborted that wait in the gateway (of this id; all for None), or run on an engine that
        knows no aborts; how many. Other gateways
        that follow this one are told, and not waited for or counted.
        """
        self._abort_elsewhere(rid)
        return self._steps.end_waiting(rid)

    def pause_dispatch(self, paused: bool) -> bool:
        """No step is sent from now on, or all that wait go on. False when it was so before."""
        return self._driver.pause_dispatch(paused)

    def finish_session(self, session_id: str, headers: Mapping[str, str]) -> bool:
        """Closes a trajectory of this caller; False where there is none (any more)."""
        live = self._driver.directory.find(asked_id(session_id), tenant_of(headers))
        if live is None:
            return False
        self._driver.finish(live)
        return True
