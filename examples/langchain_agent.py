"""LangChain agents side by side, streamed, with nothing but base_url set: Heddle tells them apart by their
messages. Needs `pip install langchain-openai`.

    python examples/langchain_agent.py "Mend the parser." "Write its test."
"""

import argparse
import asyncio
from typing import Any

import openai
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def bash(command: str) -> str:
    """Run a command."""
    return f"{len(command)} characters ran"


async def run_agent(chat: ChatOpenAI, task: str, max_steps: int) -> int:
    """Steps taken."""
    agent = chat.bind_tools([bash])
    messages: list[BaseMessage] = [SystemMessage("You are an agent."), HumanMessage(task)]
    for step in range(1, max_steps + 1):
        answer: Any = None
        async for chunk in agent.astream(messages):
            answer = chunk if answer is None else answer + chunk
        messages.append(answer)
        if not answer.tool_calls:
            return step
        for call in answer.tool_calls:
            messages.append(await bash.ainvoke(call))
    return max_steps


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=["Mend the parser.", "Write its test."])
    parser.add_argument("--gateway", default="http://127.0.0.1:8000")
    parser.add_argument("--max-steps", type=int, default=5)
    asked = parser.parse_args()
    base_url = f"{asked.gateway}/v1"
    model = openai.OpenAI(base_url=base_url, api_key="-").models.list().data[0].id
    # A step may wait for its turn longer than the 120 s that LangChain allows between two chunks.
    chat = ChatOpenAI(base_url=base_url, api_key="-", model=model, timeout=None, stream_chunk_timeout=None)
    steps = await asyncio.gather(*(run_agent(chat, task, asked.max_steps) for task in asked.tasks))
    for task, taken in zip(asked.tasks, steps, strict=True):
        print(f"{task} {taken} steps", flush=True)


asyncio.run(main())
