"""Object stores for files: the contract and its implementations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from packhorse.blobs.base import Blobs
from packhorse.blobs.local import Folder
from packhorse.errors import SettingError


def open_blobs(url: str, access_key: str = "", secret_key: str = "") -> Blobs:
    """Open the object store of the URL. Bucket keys come from the arguments or AWS_* environment variables."""
    scheme, _, rest = url.partition("://")
    if scheme == "file" and rest.startswith("/"):
        return Folder(Path(unquote(rest)))
    if scheme not in ("s3", "gs"):
        raise SettingError("PACKHORSE_BLOBS must begin with file:///, s3:// or gs://.", name="blobs")
    try:
        from packhorse.blobs.s3 import S3
    except ImportError as error:
        raise SettingError("Objects in a bucket need a driver: pip install packhorse[s3]", name="blobs") from error
    if scheme == "gs":
        from packhorse.blobs.gcs import GCS, Bucket

        return GCS(Bucket(url))
    from packhorse.blobs.s3.http import address, keys

    return S3(address(url, os.environ), keys(access_key, secret_key, os.environ))


class BucketPlace(NamedTuple):
    bucket: str
    prefix: str  # of its keys, with a slash at its end; or nothing
    server: str  # differs between two buckets of the same name


def bucket_place(url: str) -> BucketPlace:
    """Where an s3:// URL leads to. Raises SettingError if it is not valid."""
    from packhorse.blobs.s3.http import address

    found = address(url, os.environ)
    return BucketPlace(found.bucket, found.prefix, found.host + found.root)
