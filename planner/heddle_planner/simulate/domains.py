"""Made-up rollouts of the three domains that agentic RL is usually evaluated on: coding, search, mathematics.

Settings common to all, from the paper's set-up (arXiv 2603.28101): GRPO with 16 samples a prompt,
temperature 1, at most 40,000 output tokens a trajectory, tool calls between generations. The paper plots
its lengths and tool times (its Figures 2 and 4, Table 1) without giving the data, so the numbers below
are ours: each carries the reason for it. What matters to a scheduler is the shape: a heavy tail of
lengths (the longest several times the median), siblings alike but not equal, long trajectories that are
long because they take more steps, and tools whose time is mostly short with a tail.

A trajectory's length is ``median x exp(between x task + within x sample)`` with standard normals, cut to the
limits. Its number of steps grows with the root of how long it is, so that long ones take both more and longer
steps; its tokens are divided among them at random.
"""

import math
import random
from dataclasses import dataclass
from typing import Final

from heddle_planner.simulate.scripts import Script, Turn

GROUP_SIZE: Final = 16
"""Samples a prompt (GRPO in the paper)."""
MOST_OUTPUT: Final = 40_000
"""Output tokens at which a trajectory is cut off (the paper's limit)."""
LEAST_OUTPUT: Final = 64
"""No answer with a tool call is shorter than a few dozen tokens."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Parameters of a domain. Tokens, seconds, and standard deviations of logarithms."""

    prompt: int
    """System prompt, tools and task."""
    prompt_sigma: float
    """Spread of it over tasks."""
    median_output: int
    """Median output tokens of a trajectory."""
    between: float
    """Spread over tasks: how hard they are."""
    within: float
    """Spread among the samples of a task."""
    median_steps: float
    """Steps of a trajectory of median length."""
    result: int
    """Median tokens of a tool's result."""
    result_sigma: float
    """Spread of it."""
    tool_seconds: float
    """Median seconds of a tool call."""
    tool_sigma: float
    """Spread of it."""
    most_tool_seconds: float
    """Time limit of a tool."""


DOMAINS: Final[dict[str, Domain]] = {
    # Programs written, run and repaired in a sandbox. A reasoning model writes thousands of tokens. Tools
    # as in recorded SWE-bench runs, whose logarithm of seconds spreads by 2.0 around a median of 0.34 s;
    # a run of tests weighs more here, and is stopped after minutes. Samples of a task differ less than
    # tasks do (recorded airline tasks: 0.49 against 0.53; problems of a training set are more different
    # than those).
    "coding": Domain(
        prompt=1_800,
        prompt_sigma=0.4,
        median_output=5_500,
        between=0.85,
        within=0.6,
        median_steps=12,
        result=300,
        result_sigma=1.2,
        tool_seconds=0.5,
        tool_sigma=1.9,
        most_tool_seconds=300.0,
    ),
    # Questions answered with a search engine. Little is written between two searches, much is read (five
    # passages of some hundred tokens); a search is a network call of about half a second with a tail of
    # retries.
    "search": Domain(
        prompt=700,
        prompt_sigma=0.3,
        median_output=2_200,
        between=0.9,
        within=0.7,
        median_steps=6,
        result=1_500,
        result_sigma=0.5,
        tool_seconds=0.6,
        tool_sigma=0.8,
        most_tool_seconds=60.0,
    ),
    # Competition problems with a Python interpreter: long thought, few and short calls. Reasoning models
    # of 8-32 billion parameters take a median of some 8,000 tokens on such problems, and reach any limit
    # on the hard ones.
    "math": Domain(
        prompt=350,
        prompt_sigma=0.3,
        median_output=8_000,
        between=0.7,
        within=0.45,
        median_steps=4,
        result=120,
        result_sigma=1.0,
        tool_seconds=0.25,
        tool_sigma=1.0,
        most_tool_seconds=30.0,
    ),
}


def make_scripts(
    domain: Domain, *, trajectories: int, group_size: int, scale_output: float, seed: int
) -> list[Script]:
    """``trajectories`` scripts in groups of ``group_size``. ``scale_output`` multiplies lengths and their
    limit.
    """
    draw = random.Random(seed)
    scripts: list[Script] = []
    group = 0
    while len(scripts) < trajectories:
        hardness = draw.gauss(0.0, domain.between)
        prompt = max(16, round(domain.prompt * math.exp(draw.gauss(0.0, domain.prompt_sigma))))
        for _ in range(min(group_size, trajectories - len(scripts))):
            scripts.append(_make(domain, group, prompt, hardness, scale_output, draw))
        group += 1
    return scripts


def _make(
    domain: Domain, group: int, prompt: int, hardness: float, scale: float, draw: random.Random
) -> Script:
    level = hardness + draw.gauss(0.0, domain.within)
    output = min(MOST_OUTPUT, max(LEAST_OUTPUT, domain.median_output * math.exp(level))) * scale
    typical = domain.median_steps * math.sqrt(output / (domain.median_output * scale))
    steps = max(1, round(typical * math.exp(draw.gauss(0.0, 0.25))))
    steps = min(steps, max(1, int(output / 16)))
    shares = [draw.gammavariate(2.0, 1.0) for _ in range(steps)]
    whole = sum(shares)
    turns = tuple(
        Turn(
            input=0
            if index == 0
            else max(1, round(domain.result * math.exp(draw.gauss(0.0, domain.result_sigma)))),
            output=max(1, round(output * share / whole)),
            tool_seconds=min(
                domain.most_tool_seconds,
                domain.tool_seconds * math.exp(draw.gauss(0.0, domain.tool_sigma)),
            ),
        )
        for index, share in enumerate(shares)
    )
    return Script(prompt=prompt, turns=turns, group=group)
