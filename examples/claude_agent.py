"""A tool loop with the Anthropic SDK, streamed, against `/v1/messages`.

python examples/claude_agent.py "Mend the parser."
"""

import argparse
from typing import Any

import anthropic
import httpx

KEY = "unused"
TOOLS: Any = [
    {
        "name": "bash",
        "description": "Run a command.",
        "input_schema": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    }
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", default="Mend the parser.")
    parser.add_argument("--gateway", default="http://127.0.0.1:8000")
    parser.add_argument("--name", default="claude-1", help="the trajectory's id")
    parser.add_argument("--max-steps", type=int, default=6)
    asked = parser.parse_args()
    # The SDK adds /v1 itself. Without /t/{id} Heddle knows the agent by its messages.
    client = anthropic.Anthropic(base_url=f"{asked.gateway}/t/{asked.name}", api_key=KEY, timeout=3600)
    model = client.models.list().data[0].id
    messages: Any = [{"role": "user", "content": asked.task}]
    for step in range(asked.max_steps):
        with client.messages.stream(
            model=model, system="You are an agent.", messages=messages, tools=TOOLS, max_tokens=2048
        ) as stream:
            answer = stream.get_final_message()
        print(f"step {step}: {answer.stop_reason}, {answer.usage.output_tokens} tokens", flush=True)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            break
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "done"} for call in calls]
        messages.append({"role": "user", "content": results})
    # No further step comes. The key is part of the trajectory's name.
    url, auth = f"{asked.gateway}/finish_session", {"x-api-key": KEY}
    httpx.post(url, params={"session_id": asked.name}, headers=auth).raise_for_status()


main()
