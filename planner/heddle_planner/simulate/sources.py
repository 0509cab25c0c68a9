"""Where scripts come from: a domain by name, or a file of records."""

from dataclasses import dataclass, replace
from pathlib import Path

from heddle_planner.simulate.choosing import REHEARSALS
from heddle_planner.simulate.domains import DOMAINS, GROUP_SIZE, make_scripts
from heddle_planner.simulate.forecasts import with_forecasts
from heddle_planner.simulate.records import draw_scripts, load_records
from heddle_planner.simulate.scripts import Cut, Script, begun_over, cut_all


class SourceError(ValueError):
    """A workload that there is not, or that does not fit the workers."""


@dataclass(frozen=True, slots=True)
class Source:
    """A workload by its name on the command line. ``group_size``: samples a prompt; None for 16 in
    domains and as recorded in files. ``scale_output`` multiplies output tokens.
    """

    name: str
    group_size: int | None = None
    scale_output: float = 1.0
    model: Path | None = None
    """Folder of a trained predictor whose forecasts the scripts carry."""
    over_s: float = 0.0
    """Seconds within which trajectories begin at random; 0: all at once."""

    def draw(self, *, trajectories: int, seed: int) -> list[Script]:
        """So many scripts. Raises SourceError, RecordError."""
        if self.model is not None and self.name in DOMAINS:
            raise SourceError(
                f"--prediction: recorded forecasts are of recorded trajectories, not {self.name}"
            )
        if domain := DOMAINS.get(self.name):
            return make_scripts(
                domain,
                trajectories=trajectories,
                group_size=self.group_size or GROUP_SIZE,
                scale_output=self.scale_output,
                seed=seed,
            )
        path = Path(self.name)
        if not path.is_file():
            raise SourceError(f"workload {self.name} is no file and none of {', '.join(DOMAINS)}")
        records = load_records(path)
        if self.model is not None:
            records = with_forecasts(records, path, self.model)
        return draw_scripts(
            records,
            trajectories=trajectories,
            group_size=self.group_size,
            scale_output=self.scale_output,
            seed=seed,
        )

    def draw_within(self, context: int, *, trajectories: int, seed: int) -> Cut:
        """The same, cut to a context of so many tokens. Raises SourceError when nothing is left."""
        cut = cut_all(self.draw(trajectories=trajectories, seed=seed), context)
        if not cut.scripts:
            raise SourceError(
                f"workload {self.name}: no trajectory's first step fits a context of {context} tokens"
            )
        if self.over_s > 0:
            return replace(cut, scripts=begun_over(cut.scripts, self.over_s, seed))
        return cut

    def earlier_within(self, context: int, *, trajectories: int, seed: int) -> list[list[Script]]:
        """Other draws of it, to rehearse on before the one of ``seed``. Raises as `draw_within`."""
        seeds = range(seed + 1, seed + 1 + REHEARSALS)
        return [self.draw_within(context, trajectories=trajectories, seed=one).scripts for one in seeds]
