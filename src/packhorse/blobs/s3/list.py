"""Lists and deletes objects of a bucket: pages of keys and folders, and unfinished uploads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from urllib.parse import unquote_plus
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

from packhorse import crashpoints
from packhorse.blobs.base import FOLDERS, is_key
from packhorse.blobs.s3.http import Signed
from packhorse.blobs.s3.transfer import GONE
from packhorse.errors import BlobUnavailable

PAGE = 1000  # keys per listing and per delete, the most that S3 takes

LAST = "\U0010ffff"  # comes after every name

TICK = 1.0  # seconds: the resolution of times in the server's answers


class Bucket:
    """Below the prefix of its address. Blocks, as `Signed` does.

    Names by others, and the folder markers of some tools, are no valid keys, and are not listed.
    """

    def __init__(self, signed: Signed, prefix: str) -> None:
        self._signed = signed
        self._prefix = prefix

    def keys(self, prefix: str, after: str, limit: int) -> list[str]:
        found: list[str] = []
        for page in self._pages(prefix, after, min(limit, PAGE)):
            found += [key for each in page.iter("Contents") if is_key(key := self._key(page, each.findtext("Key")))]
            if len(found) >= limit:
                break
        return found[:limit]

    def folders(self, prefix: str, after: str, limit: int) -> list[str]:
        """From the keys: some servers still list empty folders. One key of a folder is enough to skip it."""
        found: list[str] = []
        after = f"{prefix}/{after}/{LAST}" if after else ""
        while len(found) < limit:
            page = next(self._pages(prefix, after, PAGE))
            for each in page.iter("Contents"):
                name, slash, _ = self._key(page, each.findtext("Key")).removeprefix(f"{prefix}/").partition("/")
                after = f"{prefix}/{name}/{LAST}" if slash else f"{prefix}/{name}"
                if slash and name not in found[-1:] and is_key(f"{prefix}/{name}"):
                    found.append(name)
            if page.findtext("IsTruncated") != "true":
                break
        return found[:limit]

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), PAGE):
            objects = [f"<Object><Key>{_escape(self._prefix + key)}</Key></Object>" for key in keys[start:][:PAGE]]
            body = f"<Delete><Quiet>true</Quiet>{''.join(objects)}</Delete>".encode()
            answer = self._signed.ask("POST", None, query={"delete": ""}, body=[body])
            for error in answer.document().iter("Error"):
                raise BlobUnavailable(reason=error.findtext("Code"))
            crashpoints.reach("blob.delete.after")

    def delete_all(self, prefix: str) -> None:
        """Also objects of others: what is purged must be gone."""
        for page in self._pages(prefix, "", PAGE):
            self.delete([self._key(page, each.findtext("Key")) for each in page.iter("Contents")])

    def abandon(self, older_than: float, *, everywhere: bool) -> int:
        gone = 0
        for key, upload, at, now in list(self._uploads()):
            if at <= now + TICK - older_than and (everywhere or key.partition("/")[0] in FOLDERS):
                self._signed.ask("DELETE", key, query={"uploadId": upload}, expect=GONE)
                gone += 1
        return gone

    def _pages(self, prefix: str, after: str, size: int) -> Iterator[Element]:
        asked = {"list-type": "2", "encoding-type": "url", "max-keys": str(size), "prefix": f"{self._prefix}{prefix}/"}
        if after:
            asked["start-after"] = self._prefix + after
        while True:
            page = self._signed.ask("GET", None, query=asked).document()
            yield page
            if page.findtext("IsTruncated") != "true":
                return
            asked["continuation-token"] = page.findtext("NextContinuationToken") or ""

    def _uploads(self) -> Iterator[tuple[str, str, float, float]]:
        asked = {"uploads": "", "encoding-type": "url", "prefix": self._prefix}
        while True:
            answer = self._signed.ask("GET", None, query=asked)
            page = answer.document()
            for each in page.iter("Upload"):
                at = datetime.fromisoformat(each.findtext("Initiated") or "").timestamp()
                yield self._key(page, each.findtext("Key")), each.findtext("UploadId") or "", at, answer.at
            if page.findtext("IsTruncated") != "true":
                return
            asked["key-marker"] = _plain(page, page.findtext("NextKeyMarker"))
            asked["upload-id-marker"] = page.findtext("NextUploadIdMarker") or ""

    def _key(self, page: Element, text: str | None) -> str:
        return _plain(page, text).removeprefix(self._prefix)


def _plain(page: Element, text: str | None) -> str:
    return unquote_plus(text or "") if page.findtext("EncodingType") == "url" else text or ""


def _escape(key: str) -> str:
    return escape(key, {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"})
