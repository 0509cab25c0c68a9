"""The report of the gateway benchmark: a table for people, JSON for everything else."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from heddle_cli.bench.arms import ArmName
from heddle_cli.bench.gateway_run import Measurement, Settings
from heddle_cli.bench.gateway_state import GatewayState
from heddle_cli.bench.machine import Machine
from heddle_cli.bench.summary import FIGURES, Figure, Spread, Summary

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Report:
    """All of one run. `peak_mib`: the servers' peak resident memory over the whole run."""

    date: str
    machine: Machine
    versions: dict[str, str]
    settings: Settings
    arms: list[ArmName]
    peak_mib: dict[ArmName, float]
    gateway_state: GatewayState
    summary: Summary
    measurements: list[Measurement]

    def as_json(self) -> dict[str, Any]:
        """Plain values only; measurements come last, they are long."""
        return {
            "schema_version": SCHEMA_VERSION,
            "date": self.date,
            "machine": asdict(self.machine),
            "versions": self.versions,
            "settings": asdict(self.settings),
            "targets": [asdict(target) for target in self.summary.targets],
            "figures": {key: _spreads(value) for key, value in self.summary.figures.items()},
            "heddle_over": {key: _spreads(value) for key, value in self.summary.heddle_over.items()},
            "added_p50_ms": _spreads(self.summary.added_p50_ms),
            "peak_mib": {str(arm): round(value, 1) for arm, value in self.peak_mib.items()},
            "gateway_state": asdict(self.gateway_state),
            "measurements": [item.as_json() for item in self.measurements],
        }


def _spreads(by_arm: dict[ArmName, Spread]) -> dict[str, dict[str, float]]:
    return {str(arm): asdict(spread) for arm, spread in by_arm.items()}


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.095 else f"{value:.3f}"


def _ratio(spread: Spread | None) -> str:
    if spread is None:
        return ""
    return f"{spread.median:.2f} [dim]({spread.least:.2f}..{spread.greatest:.2f})[/dim]"


def _row(report: Report, figure: Figure, others: Sequence[ArmName]) -> list[str]:
    values = report.summary.figures[figure.key]
    cells = [_number(values[arm].median) if arm in values else "" for arm in report.arms]
    return [
        figure.label,
        *cells,
        *(_ratio(report.summary.heddle_over[figure.key].get(arm)) for arm in others),
    ]


def print_table(report: Report, console: Console) -> None:
    """Medians per arm; ratios as median and range over the rounds."""
    settings, machine = report.settings, report.machine
    others = [arm for arm in report.arms if arm is not ArmName.HEDDLE]
    title = (
        f"{settings.connections} connections, medians of {settings.rounds} rounds of {settings.seconds:g} s"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in (*report.arms, *(f"heddle / {arm}" for arm in others)):
        table.add_column(column, justify="right")
    for figure in FIGURES:
        table.add_row(*_row(report, figure, others))
    peaks = [_number(report.peak_mib[arm]) for arm in report.arms]
    table.add_row("peak memory, MiB", *peaks, *("" for _ in others))
    console.print(table)
    for arm, spread in report.summary.added_p50_ms.items():
        span = f"{spread.least:.3f}..{spread.greatest:.3f}"
        console.print(f"{arm} adds {spread.median:.3f} ms to the p50 at 1 connection ({span})")
    state = report.gateway_state
    console.print(
        f"{state.steps_done:,} steps, each recognised as the next of its conversation; "
        f"{state.history_written:,} history records written, {state.history_lost:,} lost"
    )
    for target in report.summary.targets:
        mark = "[green]met[/green]" if target.met else "[red]missed[/red]"
        console.print(f"{mark}: {target.text}")
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    where = f"{machine.cores} cores, {machine.cpu}, {machine.system}, load {machine.load:.1f} before"
    console.print(f"[dim]{where}; {versions}[/dim]")
