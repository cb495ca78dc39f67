from __future__ import annotations

from tests.worker.conftest import blob_faults, blobs, clock, faults, folder, settle, shaky, shaky_blobs, store

__all__ = ["blob_faults", "blobs", "clock", "faults", "folder", "settle", "shaky", "shaky_blobs", "store"]
