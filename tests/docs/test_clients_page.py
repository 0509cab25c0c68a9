"""docs/clients.md says only what the gateway knows: headers, routes, and links within the page."""

import ast
import re
from pathlib import Path

import pytest
from heddle_gateway.app import create_app
from heddle_gateway.dialects.dialect import DIALECTS
from heddle_gateway.identity.conventions import HARNESSES, OWN_ID, SESSIONS, TRAJECTORIES, Place
from heddle_gateway.settings import load_settings
from heddle_gateway.side_questions import QUESTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
OF_OTHERS = {"/pause"}
"""Named as what the gateway does not have."""


def rows() -> list[list[str]]:
    """Cells of the table's lines: client, what to set, known by, its end, to mind."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| [")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def headings() -> set[str]:
    """Anchors as Markdown renderers make them."""
    titles = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_client_of_the_table_has_its_section() -> None:
    links = [match for cell in rows() for match in re.findall(r"\(#([^)]+)\)", cell[0])]
    assert len(links) == len(rows()) > 15
    assert set(links) <= headings()
    sections = set(re.findall(r"^### (.+)$", PAGE, re.MULTILINE))
    assert len(sections) == len(links), "a section that no line of the table leads to"


def test_what_clients_are_known_by_is_in_the_table_of_conventions() -> None:
    known = {
        name
        for row in (*TRAJECTORIES, *HARNESSES, *SESSIONS)
        if row.place is Place.HEADER
        for name in (*row.root, *row.agent)
    }
    named = {
        name.lower()
        for cells in rows()
        for name in re.findall(r"`([A-Za-z-]+-[Ii][Dd]|[Xx]-[^`]+)`", cells[2])
    }
    assert len(named) > 5
    assert named <= known


def test_the_headers_it_tells_people_to_send_are_ours(tmp_path: Path) -> None:
    told = {name.lower() for name in re.findall(r"X-Heddle-[A-Za-z-]+[A-Za-z]", PAGE)}
    assert OWN_ID in told
    assert told <= {f"x-heddle-{name}" for name in ("trajectory-id", "group", "sample", "parent", "final")}


def test_the_routes_it_names_exist(tmp_path: Path) -> None:
    app = create_app(load_settings(database=str(tmp_path / "history.db")))
    there = {*app.openapi()["paths"], *(one.path for one in DIALECTS), *(one.path for one in QUESTIONS)}
    patterns = [re.compile(re.sub(r"\{[^}]+\}", "[^?]+", path) + r"(\?.*)?") for path in there]
    named = {path.split(" ")[0] for path in re.findall(r"`(?:(?:GET|POST|DELETE) )?(/[a-z_][^`]*)`", PAGE)}
    assert len(named) > 12
    missing = {path for path in named - OF_OTHERS if not any(one.fullmatch(path) for one in patterns)}
    assert missing == set()


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
def test_its_snippets_are_python(block: str) -> None:
    ast.parse(f"async def snippet():\n{''.join('    ' + line for line in block.splitlines(keepends=True))}")
