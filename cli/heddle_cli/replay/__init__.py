"""Replays recorded agent trajectories against any OpenAI-compatible server.

    loader (records) ▶ agent (one trajectory, the plain openai SDK) ▶ rollout (many at once, the report)

The agents carry no mark of their trajectory: they send the messages they have, as any agent does.
"""
