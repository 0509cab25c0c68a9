"""The first step of the agents whose load the benchmark makes.

The load generator lets it grow by answers and tool outputs: a plain body is about 4 KB in the middle of its
conversation.
"""

import json
from pathlib import Path
from typing import Any

MODEL = "mock-8b"

_RULES = (
    "You are a software engineer who works in a checked-out repository through a shell.",
    "Read before you write. Change as little as the task needs, and nothing else.",
    "Run the tests of what you touched before you say that you are done.",
    "Never delete files you did not create. Never write outside of the repository.",
    "Keep the style of the file you are in: its names, its line length, its way to handle errors.",
    "When a command fails, read its whole output and think about the cause before the next command.",
    "When the task is ambiguous, take the reading that needs the smaller change and say so at the end.",
    "Answer with one tool call at a time. Give the final answer as plain text without a tool call.",
)

_TASK = (
    "The test test_connection_is_reused in tests/test_client.py fails about one time in twenty. Find out "
    "why, fix the cause in the client, not in the test, and add a test that always fails without the fix."
)


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def first_step(*, streamed: bool) -> dict[str, Any]:
    """Body of an agent's first request; `streamed` ones do not ask for usage, as the openai SDK's default."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "\n".join(_RULES)},
            {"role": "user", "content": _TASK},
        ],
        "temperature": 1.0,
        "max_tokens": 4096,
        "tools": [
            _tool("run_command", "Run a command in the shell.", command="Command line."),
            _tool("read_file", "Read a file.", path="Path in the repository."),
            _tool(
                "write_file",
                "Replace a file.",
                path="Path in the repository.",
                content="New text of the file.",
            ),
        ],
    }
    return body | {"stream": True} if streamed else body


def write_bodies(folder: Path) -> dict[bool, Path]:
    """Writes both first steps; the key says whether the answer is streamed."""
    paths = {
        streamed: folder / f"first-step-{'streamed' if streamed else 'plain'}.json"
        for streamed in (False, True)
    }
    for streamed, path in paths.items():
        path.write_text(json.dumps(first_step(streamed=streamed)))
    return paths
