"""Lists of keys in the environment: HEDDLE_ADMIN_KEYS is the gateway's list and its clients' key."""

import json


def first_key(keys: str) -> str:
    """The first one of a list with commas between them, or a JSON list; as it is where it is neither."""
    if keys.lstrip().startswith("["):
        try:
            found = json.loads(keys)
        except ValueError:
            return keys
        return str(found[0]) if found else ""
    return keys.split(",")[0].strip()
