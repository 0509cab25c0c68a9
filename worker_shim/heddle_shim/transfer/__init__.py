"""Moving KV pages: a store in shared memory, a transport between shims, re-sharding between TP degrees.

    routes ▶ migrations ▶ {transport ▶ tcp, engine_side ▶ stored_pages ▶ {page_store, reshard}}

Nothing here knows an engine. SGLang's side and the emulated engine's are the two that fill ``engine_side``.
"""
