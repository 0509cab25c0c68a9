"""What can be wrong with a page store."""


class StoreError(Exception):
    """A page store that cannot be used; the message says what to do."""


class StoreInUse(StoreError):
    """Another shim owns it."""


class StoreMissing(StoreError):
    """There is none to attach to."""


class StoreTooLarge(StoreError):
    """The file system has no room for its budget."""
