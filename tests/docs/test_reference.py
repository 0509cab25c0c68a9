"""docs/REFERENCE.md lists every setting, policy field, route and metric, as the code has them now.

The tables are written by this file: ``python tests/docs/test_reference.py`` renews the page, the tests fail
until that is done. Prose around the tables is kept.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from heddle_core import Core
from heddle_gateway.app import create_app
from heddle_gateway.dialects.dialect import DIALECTS
from heddle_gateway.heddle_app import HeddleApp
from heddle_gateway.settings import ENV_PREFIX, Settings, load_settings
from heddle_gateway.side_questions import QUESTIONS
from prometheus_client.core import Metric

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "REFERENCE.md"
POLICY_SOURCE = ROOT / "router_rs" / "crates" / "core" / "src" / "policy.rs"
MARK = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def an_app(folder: Path) -> HeddleApp:
    """A gateway that is made and never started; with a Redis it has all metrics."""
    return create_app(load_settings(database=str(folder / "history.db"), redis_url="redis://127.0.0.1:1/0"))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def settings_table() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = json.dumps(default if not isinstance(default, tuple) else list(default))
        rows.append([f"`{name}`", f"`{ENV_PREFIX}{name.upper()}`", f"`{shown}`", field.description or ""])
    return table(["setting", "environment", "default", "meaning"], rows)


def policy_table() -> str:
    policy: Mapping[str, Any] = json.loads(Core().policy_json())
    source = POLICY_SOURCE.read_text()
    rows = []
    for name, default in policy.items():
        meaning = _meaning(source, name)
        if names := variants(name):
            meaning += f" One of {names}."
        rows.append([f"`{name}`", f"`{json.dumps(default)}`", meaning])
    return table(["field", "default", "meaning"], rows)


def _meaning(source: str, field: str) -> str:
    """The comment at the field of the Rust struct."""
    found = re.search(rf"((?:^    ///.*\n)+)    pub {field}:", source, re.MULTILINE)
    assert found is not None, f"{field} says nothing"
    return " ".join(line.strip().removeprefix("///").strip() for line in found[1].splitlines())


def variants(field: str) -> str:
    """The names that a field of the policy takes, by the core's own refusal; empty for numbers."""
    try:
        Core(json.dumps({field: "-"}))
    except ValueError as refusal:
        _, _, expected = str(refusal).partition("expected one of")
        return ", ".join(re.findall(r"`\w+`", expected))
    raise AssertionError(f"{field} takes anything")


def routes(app: HeddleApp) -> Iterator[tuple[str, str, str]]:
    """(method, path, what it is), data path first."""
    for dialect in DIALECTS:
        yield "POST", dialect.path, f"Agents: the {dialect.name} dialect, streaming and not"
    for question in QUESTIONS:
        yield "POST", question.path, f"Agents: {question.what}; no step"
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation["summary"]


def routes_table(app: HeddleApp) -> str:
    rows = [[method, f"`{path}`", text] for method, path, text in routes(app)]
    return table(["method", "path", "what"], rows)


def metrics_table(app: HeddleApp) -> str:
    return table(["metric", "type", "labels", "meaning"], map(_metric_row, metrics(app)))


def metrics(app: HeddleApp) -> list[Metric]:
    return sorted(app.state.gateway.metrics.collect(), key=lambda family: str(family.name))


def _metric_row(family: Metric) -> list[str]:
    name = family.name + "_total" * (family.type == "counter")
    labels: Sequence[str] = getattr(family, "_labelnames", ())
    return [f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation]


def renewed(page: str, app: HeddleApp) -> str:
    """The page with its tables written anew."""
    tables = {
        "settings": settings_table(),
        "policy": policy_table(),
        "routes": routes_table(app),
        "metrics": metrics_table(app),
    }
    assert [found[1] for found in MARK.findall(page)] == list(tables), "a table's marks are gone"
    return MARK.sub(lambda found: found[1] + tables[found[2]] + found[4], page)


def test_the_reference_has_every_setting_policy_field_route_and_metric(tmp_path: Path) -> None:
    page = PAGE.read_text()
    wanted = renewed(page, an_app(tmp_path)).splitlines()
    missing = [line for line in wanted if line not in page.splitlines()]
    stale = [line for line in page.splitlines() if line not in wanted]
    assert (missing, stale) == ([], []), "run: .venv/bin/python tests/docs/test_reference.py"


def test_every_setting_and_route_says_what_it_is(tmp_path: Path) -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []
    assert [path for _, path, text in routes(an_app(tmp_path)) if not text.strip()] == []


def test_the_api_document_names_each_operation_once(tmp_path: Path) -> None:
    app = an_app(tmp_path)
    ids = [
        operation["operationId"]
        for operations in app.openapi()["paths"].values()
        for operation in operations.values()
    ]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("gone", ["| `port` |", "| `heddle_steps_total` |", "`/admin/v1/stats`"])
def test_a_line_that_is_missing_is_noticed(tmp_path: Path, gone: str) -> None:
    page = PAGE.read_text()
    shorter = "".join(line for line in page.splitlines(keepends=True) if gone not in line)
    assert shorter != page
    assert renewed(shorter, an_app(tmp_path)) == renewed(page, an_app(tmp_path)) == page


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(renewed(PAGE.read_text(), an_app(Path(folder))))
