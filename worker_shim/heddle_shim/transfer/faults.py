"""Why a transfer did not happen, as an exception."""

from heddle_contracts.kv import MigrationFault


class TransferFault(Exception):
    """Ends a transfer. ``detail`` says which field, which side and what to do."""

    def __init__(self, fault: MigrationFault, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault
        self.detail = detail
