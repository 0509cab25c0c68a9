"""The commands that the pages for people name exist, with the options they are shown with."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
FENCE = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    ((?:make|heddle|\.venv/bin/heddle)(?: .*)?)$", re.MULTILINE)
INLINE = re.compile(r"`((?:make|heddle|\.venv/bin/heddle) [^`]+)`")
OPTION = re.compile(r"--[a-z][a-z-]*")


def commands() -> set[str]:
    """Lines that start a command, without their comments."""
    found: set[str] = set()
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text())  # a line that goes on
        lines = [line for block in FENCE.findall(text) for line in block.splitlines()]
        lines += INDENTED.findall(text) + INLINE.findall(text)
        found |= {" ".join(shlex.split(line, comments=True)) for line in lines}
    return found


def heddle_commands() -> list[str]:
    names = (command.removeprefix(".venv/bin/") for command in commands())
    return sorted({name for name in names if name.startswith("heddle ")})


def make_targets() -> list[str]:
    return sorted(
        {
            word
            for command in commands()
            if command.startswith("make ")
            for word in command.split()[1:]
            if "=" not in word  # a variable
        }
    )


def help_of(words: list[str]) -> str:
    asked = subprocess.run(
        [sys.executable, "-m", "heddle_cli", *words, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"COLUMNS": "250", "NO_COLOR": "1", "PATH": "/usr/bin:/bin"},
    )
    assert asked.returncode == 0, (words, asked.stderr)
    return asked.stdout


def test_the_pages_name_the_commands_that_matter() -> None:
    assert {"demo", "test", "install", "lint"} <= set(make_targets())
    assert any(command.startswith("heddle up") for command in heddle_commands())


@pytest.mark.parametrize("command", heddle_commands())
def test_a_command_in_the_docs_exists_with_its_options(command: str) -> None:
    words = command.split()[1:]
    path = []
    for word in words:
        if not re.fullmatch(r"[a-z]+", word):
            break
        path.append(word)
    assert path, command
    shown = help_of(path)
    ours, _, _ = command.partition(" --launch ")  # what follows is the engine's
    assert set(OPTION.findall(ours)) <= set(OPTION.findall(shown)), command


@pytest.mark.parametrize("target", make_targets())
def test_a_make_target_in_the_docs_exists(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"make {target}"


def test_the_agents_snippet_of_the_readme_is_good_python() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        clients: dict[str, object] = {}
        exec(compile(block, "README.md", "exec"), clients)
        made = [one for one in clients.values() if isinstance(one, openai.OpenAI)]
        assert "http://127.0.0.1:8000/v1/" in {str(one.base_url) for one in made}
        for one in made:
            one.close()
