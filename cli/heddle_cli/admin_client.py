"""Client of a gateway's admin API (`/admin/v1`), for people and scripts.

Errors come out as `CommandFailed`: UNREACHABLE when nothing answers, FAILED with the problem's text
otherwise.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

import httpx
import typer
from heddle_contracts.kept import KEPT_HEADER, KEPT_IN_PROCESS
from heddle_contracts.keys import first_key

from heddle_cli.exit_codes import CommandFailed, Exit

COMMANDS: Final = (
    ("GET /admin/v1/trajectories?prefix=...", "heddle trajectories ls --prefix ..."),
    ("GET /admin/v1/trajectories", "heddle trajectories ls"),
    ("GET /admin/v1/workers", "heddle workers ls"),
    ("GET /admin/v1/policy", "heddle policy show"),
    ("GET /admin/v1/plans", "heddle plan show --all"),
    ("POST /admin/v1/plans without lengths", "heddle plan compute"),
    ("POST /admin/v1/plans", "heddle plan compute"),
    ("GET /admin/v1/rollouts", "heddle rollouts ls"),
    ("POST /admin/v1/rollouts/{id}/finish", "heddle rollouts finish ID"),
)
"""The gateway speaks of its routes; who typed a command is told of commands. Longer ones first."""

DEFAULT_GATEWAY = "http://127.0.0.1:8000"
CONNECT_S = 5.0
TIMEOUT_S = 30.0
PLAN_TIMEOUT_S = 150.0
"""For what a plan is made: the planner has 60 s (`plan_timeout_s`), and a round may be under way already."""

Gateway = Annotated[
    str, typer.Option("--gateway", envvar="HEDDLE_GATEWAY", help="URL of the gateway.", show_default=True)
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", envvar="HEDDLE_ADMIN_KEYS", help="Admin key; the first one of a list.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def path_of(trajectory_id: str) -> str:
    """The id as one path segment. A dot is escaped too: clients take `..` out of a path."""
    return quote(trajectory_id, safe="").replace(".", "%2E")


class AdminClient:
    """One gateway's admin API; answers are parsed JSON."""

    def __init__(self, gateway: str, key: str | None = None) -> None:
        self._gateway = gateway.rstrip("/")
        headers = {"authorization": f"Bearer {first_key(key)}"} if key else {}
        try:
            self._http = httpx.Client(base_url=self._gateway, headers=headers, trust_env=False)
        except (httpx.InvalidURL, ValueError) as error:
            raise CommandFailed(Exit.USAGE, f"--gateway {gateway}: {error}") from error

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        return self._ask("GET", path, params=params)

    def post(
        self,
        path: str,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        look: str | None = None,
    ) -> Any:
        """``timeout_s``: longest wait for the answer; ``look``: the command that tells whether it was done
        where none came.
        """
        return self._ask("POST", path, params=params, body=body, timeout_s=timeout_s, look=look)

    def put(self, path: str, body: Any) -> Any:
        return self._ask("PUT", path, body=body)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def pages(self, path: str, params: Mapping[str, Any]) -> Iterator[Any]:
        """The pages of a list, following its cursors."""
        cursor = None
        while True:
            page = self.get(path, {**params, "cursor": cursor})
            yield page
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        timeout_s: float = TIMEOUT_S,
        look: str | None = None,
    ) -> Any:
        known = {name: value for name, value in (params or {}).items() if value is not None}
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        try:
            answer = self._http.request(method, f"/admin/v1{path}", params=known, json=body, timeout=timeout)
        except httpx.ReadTimeout as error:
            done = f" It may have been done all the same: `{look}`." if look is not None else ""
            raise CommandFailed(
                Exit.FAILED, f"{self._gateway} was asked and gave no answer within {timeout_s:g} s.{done}"
            ) from error
        except (httpx.TransportError, httpx.UnsupportedProtocol) as error:
            raise CommandFailed(
                Exit.UNREACHABLE,
                f"cannot reach a gateway at {self._gateway} ({error}). "
                "Start one with `heddle up`, or name yours with --gateway.",
            ) from error
        if answer.headers.get(KEPT_HEADER) == KEPT_IN_PROCESS:
            typer.echo(
                "done; the gateway cannot reach its Redis: should it die before it can, this is lost",
                err=True,
            )
        if answer.is_success:
            try:
                return answer.json()
            except ValueError as error:
                raise CommandFailed(
                    Exit.FAILED, f"{self._gateway} does not answer like a Heddle gateway"
                ) from error
        raise CommandFailed(Exit.FAILED, _explained(answer))


def in_commands(fix: str) -> str:
    """What the gateway advises, with commands in place of the routes they ask."""
    for route, command in COMMANDS:
        fix = fix.replace(route, f"`{command}`")
    return fix.replace("?tenant=", "--tenant.")


def _explained(answer: httpx.Response) -> str:
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if isinstance(problem, dict) and "detail" in problem:
        lines = [str(problem["detail"])]
        if problem.get("allowed"):
            lines.append(f"allowed: {', '.join(str(value) or repr(value) for value in problem['allowed'])}")
        fix = in_commands(str(problem.get("fix") or ""))
        if fix and fix not in lines[0]:
            lines.append(fix)
        return "\n".join(lines)
    if isinstance(problem, dict) and isinstance(problem.get("error"), dict):
        message = str(problem["error"].get("message", answer.text))
        if answer.status_code == httpx.codes.NOT_FOUND:
            message += f": {answer.url}\nGive --gateway as http://HOST:PORT, without the /v1 of agents."
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            message += "\nGive the admin key with --key or HEDDLE_ADMIN_KEYS."
        return message
    return f"the gateway answered {answer.status_code}: {answer.text[:200]}"
