"""The pipeline: fetch a file within limits, store it unchanged, and examine it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from packhorse import App, Context, Fetched, Fetcher, File, OutboundFailed, Params, Permanent, Revive, Secret, needs
from packhorse_fetch import codes, config, fields, images, kinds
from packhorse_fetch.charsets import HEAD
from packhorse_fetch.examine import Findings, Trouble, examine

ALLOW = "FETCH_ALLOW"
"""The setting with the hosts and networks that may be fetched from although they are not public."""
JOBS = "FETCH_JOBS"
"""The setting that names the file with the schedules."""
KEEP = timedelta(days=7)
AFRESH = KEEP - timedelta(days=1)
"""A file that has not changed for this long is downloaded again anyway, so that there is always a copy."""
SILENCE = 15.0

app = App("fetch", statuses={"pending": "pending", "running": "running", "completed": "success", "failed": "error"})

Secrets = Annotated[dict[str, Secret], Meta(max_length=50)]


class Fetch(Params):
    """Downloads a file from the web. `params` and `headers` are for secrets: their values are never shown."""

    fetch_url: Annotated[str, Meta(max_length=2048, pattern=r"^https?://[^\s]+$")]
    params: Secrets = {}  # noqa: RUF012 (msgspec copies it; likewise below)
    """Added to the query of the address. Write values that are not secret into the address itself."""
    headers: Secrets = {}  # noqa: RUF012
    post_process: bool = True
    """Examine the file: measure pictures, extract fields from JSON, feeds and pages."""
    required: bool = False
    """Fail the job if the file cannot be read or a field is missing. By default that is a warning."""
    fields: Annotated[dict[str, Annotated[str, Meta(pattern=fields.PATH)]], Meta(max_length=100)] = {}  # noqa: RUF012
    """Fields to extract from JSON, a feed or a page, by name: `{"titles": "entries[*].title"}`."""
    timeout_s: Annotated[float, Meta(gt=0, le=300)] = 30.0
    max_bytes: Annotated[int, Meta(ge=1, le=1024**3)] = 50 * 1024**2
    max_redirects: Annotated[int, Meta(ge=0, le=10)] = 3


class Source(msgspec.Struct, frozen=True):
    """The address of the file, and what the server sends to recognise an unchanged file."""

    url: str
    status: int
    is_unchanged: bool
    fetched_at: str
    media_type: str = ""
    """By the content of the file."""
    declared_type: str = ""
    """What the server says, with its parameters."""
    size: int = 0
    sha256: str = ""
    etag: str | None = None
    last_modified: str | None = None


class Download(msgspec.Struct, frozen=True):
    source: Source
    original: File | None
    """None if the file has not changed."""


class Output(msgspec.Struct, frozen=True):
    """The fetched file: of this job, or of an earlier one if it has not changed since."""

    job_id: str
    artifact: str


class Report(msgspec.Struct, frozen=True):
    """The outcome; ``meta.json`` has the same, without the line about a change."""

    source: Source
    message: str
    output: Output | None = None
    kind: kinds.Kind | None = None
    charset: str | None = None
    image: images.Picture | None = None
    fields: dict[str, Any] | None = None
    missing: list[str] | None = None
    """Names of fields that the file does not have."""
    warnings: list[Trouble] = []


fetch = app.pipeline(
    "fetch",
    Fetch,
    keep=KEEP.total_seconds(),
    deadline="1h",
    publish="{schedule}/{date}",
    alerts="every",  # a webhook gets each failure, as a dead-letter queue does
    revive=Revive(codes=tuple(codes.AGAIN), times=3, backoff="15m", budget=100, per="1h"),
)


@fetch.stage(queue="fetch", retries=3, timeout="6m")
def download(ctx: Context, p: Fetch) -> Download:
    last = remembered(ctx.previous)
    path = ctx.scratch / "original"
    try:
        found = fetcher(p).get(
            p.fetch_url,
            path,
            params={name: value.reveal() for name, value in p.params.items()},
            headers={name: value.reveal() for name, value in p.headers.items()},
            etag=last.etag if last else None,
            modified=last.last_modified if last else None,
        )
    except OutboundFailed as error:
        if codes.is_final(error.code):
            raise Permanent(error.message, code=error.code) from error
        raise
    if found.is_unchanged and last is not None:
        ctx.log.info("Not changed since %s.", last.fetched_at)
        return Download(msgspec.structs.replace(last, status=found.status, is_unchanged=True), None)
    kind = type_of(path, found.headers.get("content-type", ""))
    original = File(path, f"original.{kinds.suffix(kind, p.fetch_url)}")
    ctx.log.info("%d bytes of %s.", found.size, kind)
    return Download(source_of(found, kind, original, shown_url(found.url, p)), original)


@fetch.stage(retries=1, timeout="5m", memory="2GB")
def process(ctx: Context, p: Fetch, got: Download = needs(download)) -> Report:
    if got.original is None:
        return unchanged(ctx.previous, got.source)
    thumbnail, source = ctx.scratch / "thumbnail.png", got.source
    found = None
    if p.post_process:
        path = got.original.path
        found = examine(path, source.media_type, source.declared_type, p.fields, thumbnail, source.url)
        if p.required:
            check(found)
    stored = [got.original.name, "meta.json", *(["thumbnail.png"] if thumbnail.exists() else [])]
    report = report_of(source, found, stored, Output(ctx.job_id, f"download/{got.original.name}"))
    if thumbnail.exists():
        ctx.artifact("thumbnail.png", thumbnail)
    # Servers repeat keys in what they answer. The fetched file is theirs; what we write of it has none of them.
    ctx.artifact("meta.json", ctx.redact(msgspec.json.format(msgspec.json.encode(report), indent=2).decode()).encode())
    return report


def check(found: Findings) -> None:
    """Raise Permanent for what a schedule without `required` only warns of."""
    if found.warnings:
        raise Permanent(found.warnings[0].message, code=found.warnings[0].code)
    if found.missing:
        raise Permanent(f"It has no {', '.join(found.missing)}.", code="MISSING_FIELDS")


def report_of(source: Source, found: Findings | None, stored: list[str], output: Output) -> Report:
    what = "file" if found is None or found.kind in ("other", "xml") else found.kind
    message = f"Fetched {what}: stored {', '.join(stored)} ({source.media_type}, {source.size} bytes)."
    if found is None:
        return Report(source, message, output)
    if found.missing:
        message += f" Missing: {', '.join(found.missing)}."
    for warning in found.warnings:
        message += f" {warning.code}: {warning.message}"
    return Report(
        source=source,
        message=message,
        output=output,
        kind=found.kind,
        charset=found.charset,
        image=found.image,
        fields=found.fields,
        missing=None if found.fields is None and not found.missing else found.missing,
        warnings=found.warnings,
    )


def fetcher(p: Fetch) -> Fetcher:
    """Keys are not sent where everybody on the way can read them, unless the operator has named that host."""
    return Fetcher(
        allow=os.environ.get(ALLOW, ""),
        schemes=("https",) if p.params or p.headers else ("https", "http"),
        redirects=p.max_redirects,
        total=p.timeout_s,
        silence=min(SILENCE, p.timeout_s),
        body=p.max_bytes,
    )


def type_of(path: Path, content_type: str) -> str:
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(max(0, path.stat().st_size - kinds.BOUNDARY))
        return kinds.media_type(content_type, head, file.read())


def remembered(previous: Any) -> Source | None:
    """The source of the previous run, if its copy is kept for at least another day."""
    try:
        source: Source = msgspec.convert(previous["source"], Source)
    except (TypeError, KeyError, msgspec.ValidationError):  # there is none, or it was made by another version
        return None
    return source if datetime.now(UTC) - datetime.fromisoformat(source.fetched_at) < AFRESH else None


def unchanged(previous: Any, source: Source) -> Report:
    """The findings of the previous run are still valid, so the newest run shows them too."""
    message = f"Not changed since {source.fetched_at}."
    try:
        last = msgspec.convert(previous, Report)
    except msgspec.ValidationError:
        return Report(source, message)
    return msgspec.structs.replace(last, source=source, message=message)


def source_of(found: Fetched, media_type: str, original: File, url: str) -> Source:
    return Source(
        url=url,
        status=found.status,
        is_unchanged=False,
        fetched_at=datetime.now(UTC).isoformat(timespec="seconds"),
        media_type=media_type,
        declared_type=found.headers.get("content-type", ""),
        size=found.size,
        sha256=original.sha256,
        etag=found.headers.get("etag"),
        last_modified=found.headers.get("last-modified"),
    )


def shown_url(url: str, p: Fetch) -> str:
    """Where it came from in the end; with keys in the query, without the query: this goes into a file."""
    return url.partition("?")[0] if p.params else url


for clock, what in config.jobs(Path(os.environ[JOBS]), Fetch) if os.environ.get(JOBS) else ():
    app.schedule(clock.job_id, fetch, what, cron=clock.cron, zone=clock.zone, user=clock.user, active=clock.active)
