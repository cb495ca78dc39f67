"""A stand-in for Google Cloud Storage: the calls of its XML API that obstore makes, with objects in memory.

It refuses to create what exists (`x-goog-if-generation-match: 0`), lists in pages, and joins the parts of an upload.
"""

from __future__ import annotations

import atexit
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import cache
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 3  # objects per page: few, so that a test of any size has several


@dataclass
class Object:
    data: bytes
    meta: dict[str, str]
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def etag(self) -> str:
        return f'"{md5(self.data + repr(self.at).encode(), usedforsecurity=False).hexdigest()}"'


@dataclass
class Bucket:
    url: str = ""
    objects: dict[str, Object] = field(default_factory=dict)
    uploads: dict[str, tuple[dict[str, str], dict[int, bytes]]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    failing: list[int] = field(default_factory=list)
    """Statuses with which the next requests are answered."""
    losing: list[int] = field(default_factory=list)
    """The same, for requests that are carried out nevertheless."""
    arrived: threading.Event = field(default_factory=threading.Event)
    """Set by every request."""
    numbers: Iterator[int] = field(default_factory=count)

    def place(self) -> str:
        """A new, empty place, as a URL."""
        return self.url.replace("?", f"/place-{next(self.numbers)}?")


@cache
def running() -> Bucket:
    """One for all tests of this process, until it ends."""
    server = gcs(page=1000)
    atexit.register(server.__exit__, None, None, None)
    return server.__enter__()


@contextmanager
def gcs(page: int = PAGE) -> Iterator[Bucket]:
    bucket = Bucket()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            if self.command == "PUT" and bucket.losing:
                status, body, headers = bucket.losing.pop(0), b"", {}
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", headers.pop("content_length", str(len(body))))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def handle_one(self) -> None:
            parts = urlsplit(self.path)
            key = unquote(parts.path).lstrip("/").partition("/")[2]
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            meta = {name: value for name, value in self.headers.items() if name.lower().startswith("x-goog-meta-")}
            bucket.arrived.set()
            with bucket.lock:
                if bucket.failing:
                    self.answer(bucket.failing.pop(0))
                else:
                    self.route(key, query, body, meta)

        def route(self, key: str, query: dict[str, str], body: bytes, meta: dict[str, str]) -> None:
            found = bucket.objects.get(key)
            match self.command:
                case "GET" if not key and unquote(self.path).startswith("/missing"):
                    self.answer(404)
                case "GET" if not key:
                    self.list(query)
                case "GET" | "HEAD" if found is not None:
                    self.read(found)
                case "GET" | "HEAD":
                    self.answer(404)
                case "DELETE" if "uploadId" in query:
                    bucket.uploads.pop(query["uploadId"])
                    self.answer(204)
                case "DELETE":
                    self.answer(404 if bucket.objects.pop(key, None) is None else 204)
                case "POST" if "uploads" in query:
                    id = f"u{len(bucket.uploads)}"
                    bucket.uploads[id] = (meta, {})
                    xml = f"<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                    self.answer(200, xml.encode())
                case "PUT" if "partNumber" in query:
                    bucket.uploads[query["uploadId"]][1][int(query["partNumber"])] = body
                    self.answer(200, ETag=f'"{query["partNumber"]}"')
                case "POST":
                    kept, parts = bucket.uploads.pop(query["uploadId"])
                    self.keep(key, b"".join(parts[n] for n in sorted(parts)), kept)
                case "PUT":
                    source = self.headers.get("x-goog-copy-source")
                    copied = bucket.objects.get(unquote(source).lstrip("/").partition("/")[2]) if source else None
                    if source and copied is None:
                        self.answer(404)
                    elif found is not None and self.headers.get("x-goog-if-generation-match") == "0":
                        self.answer(412)
                    elif copied is not None:
                        self.keep(key, copied.data, copied.meta)
                    else:
                        self.keep(key, body, meta)

        def keep(self, key: str, data: bytes, meta: dict[str, str]) -> None:
            made = bucket.objects[key] = Object(data, meta)
            xml = f"<CompleteMultipartUploadResult><ETag>{escape(made.etag)}</ETag></CompleteMultipartUploadResult>"
            self.answer(200, xml.encode(), ETag=made.etag, x_goog_generation="1")

        def read(self, found: Object) -> None:
            headers: dict[str, Any] = {
                "ETag": found.etag,
                "Last_Modified": format_datetime(found.at, usegmt=True),
                "x_goog_generation": "1",
                **{name.replace("-", "_"): value for name, value in found.meta.items()},
            }
            if (wanted := self.headers.get("if-match")) not in (None, found.etag):
                self.answer(412, wanted.encode() if wanted else b"")
                return
            data, status = found.data, 200
            if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range") or ""):
                start, end = int(asked[1]), min(int(asked[2] or 10**12) + 1, len(data))
                headers["Content_Range"], status = f"bytes {start}-{end - 1}/{len(data)}", 206
                data = data[start:end]
            self.answer(status, data, **headers)

        def list(self, query: dict[str, str]) -> None:
            after = max(query.get("start-after", ""), query.get("continuation-token", ""))
            keys = sorted(key for key in bucket.objects if key.startswith(query.get("prefix", "")) and key > after)
            shown = keys[:page]
            more = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if len(keys) > page else ""
            items = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(bucket.objects[key].data)}</Size>"
                f"<ETag>{escape(bucket.objects[key].etag)}</ETag>"
                f"<LastModified>{bucket.objects[key].at.strftime('%Y-%m-%dT%H:%M:%S.%fZ')}</LastModified></Contents>"
                for key in shown
            )
            state = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}"
            xml = f"<ListBucketResult>{state}{items}</ListBucketResult>"
            self.answer(200, xml.encode(), content_type="application/xml")

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        bucket.url = f"gs://ns-temp-bucket?endpoint=http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
        thread.start()
        try:
            yield bucket
        finally:
            server.shutdown()
            thread.join()
