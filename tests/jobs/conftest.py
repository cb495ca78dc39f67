from __future__ import annotations

from tests.worker.conftest import blob_faults, blobs, clock, faults, folder, shaky, shaky_blobs, store, transact

__all__ = ["blob_faults", "blobs", "clock", "faults", "folder", "shaky", "shaky_blobs", "store", "transact"]
