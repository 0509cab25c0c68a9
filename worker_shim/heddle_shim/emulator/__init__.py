"""An emulated inference engine: SGLang 0.5.23 as seen over HTTP, its scheduler and prefix cache included,
no GPU.

What is real: continuous batching, chunked prefill before decode, slots, a KV pool with a radix prefix tree
and LRU eviction, priorities, preemption and retraction, aborts. What is modelled: the time a step takes
(``timing``) and the text (pseudo-words, one token each). Nothing here imports asyncio below ``driver``; the
engine is a state machine whose only clock is the ``now`` it is given.

    http ▶ driver ▶ engine ▶ {admission, decoding ▶ decode_segment, kv_pool ▶ radix, timing}
    http ▶ {chat, answer, json_answer} ▶ tokens
    http ▶ worker_migrations ▶ shim_side ▶ {kv_moves ▶ engine, histories, link, synthetic_page}
"""
