"""What the gateway's history of a rollout says, read once the gateway has ended. Times are real seconds."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from heddle_cli.exit_codes import CommandFailed, Exit


@dataclass(frozen=True, slots=True)
class LandedMove:
    """A move of KV, from the core's wish to the shim's word."""

    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class History:
    """``held_s``: from arrival to dispatch, summed over a trajectory's steps, by its id."""

    held_s: dict[str, float]
    moves: Sequence[LandedMove]

    def held_of(self, trajectory: str) -> float:
        """Raises CommandFailed where the history holds no step of it: then it would all count as lateness."""
        try:
            return self.held_s[trajectory]
        except KeyError:
            raise CommandFailed(Exit.FAILED, f"the history holds no step of {trajectory}") from None

    def move_setup_s(self, tokens_per_s: float) -> float:
        """What a move takes beside the transfer itself: the median over those that landed; 0 where none did.
        ``tokens_per_s``: of the link, in real seconds.
        """
        beside = [max(0.0, move.seconds - move.tokens / tokens_per_s) for move in self.moves]
        return median(beside) if beside else 0.0


def read_history(database: Path) -> History:
    """Raises CommandFailed."""
    held = "SELECT trajectory_id, SUM(dispatched_at - arrived_at) FROM steps GROUP BY trajectory_id"
    moves = "SELECT seconds, tokens_landed FROM migrations WHERE state = 'landed'"
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return History(
                {name: seconds or 0.0 for name, seconds in connection.execute(held)},
                [LandedMove(*row) for row in connection.execute(moves)],
            )
    except sqlite3.Error as error:
        raise CommandFailed(Exit.FAILED, f"{database}: {error}") from error
