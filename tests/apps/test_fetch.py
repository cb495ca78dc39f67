"""The fetch app on the real engine, against a web server that does whatever it likes."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from packhorse import Secret
from packhorse.testing import Bench, BenchJob
from packhorse_fetch import codes, config, evaluate, feeds, fields, kinds, sample
from packhorse_fetch.app import ALLOW, Fetch, Report, Source, download, fetch, process, remembered, type_of, unchanged
from packhorse_fetch.examine import Findings, examine
from tests.apps.test_fetch_runs import JOB_CONFIG
from tests.servers.web import Answer, Asked, Web, answering, by_path, dropping, in_turn, web_aside

README = Path(__file__).parents[2] / "apps" / "fetch" / "README.md"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv(ALLOW, "127.0.0.0/8")
    with web_aside() as found:
        yield found


def png(picture: Image.Image) -> bytes:
    made = io.BytesIO()
    picture.save(made, "PNG")
    return made.getvalue()


def fetched(packhorse: Bench, url: str, **parameters: Any) -> tuple[BenchJob[Any], Report]:
    job = packhorse.run(fetch, Fetch(fetch_url=url, **parameters))
    assert job.status == "completed", job.error
    return job, job.result


def failed(packhorse: Bench, url: str, **parameters: Any) -> BenchJob[Any]:
    job = packhorse.run(fetch, Fetch(fetch_url=url, **parameters))
    assert job.status == "failed"
    assert job.error is not None
    return job


# What is true of what was fetched.


def test_a_picture_is_kept_measured_and_made_small(packhorse: Bench, server: Web) -> None:
    data = png(sample.picture())
    server.answer = answering(200, data, content_type="image/png", etag='"1"')

    job, report = fetched(packhorse, f"{server.url}/picture")

    assert job.artifacts["download/original.png"].read_bytes() == data
    assert report.image is not None
    assert (report.image.format, report.image.width, report.image.height) == ("PNG", 640, 400)
    assert [(colour.hex, colour.share) for colour in report.image.colours] == [("#1040a0", 0.75), ("#e02020", 0.25)]
    with Image.open(job.artifacts["process/thumbnail.png"].path) as small:
        assert (small.size, small.mode) == ((256, 160), "RGB")
        assert (small.getpixel((10, 80)), small.getpixel((200, 80))) == ((0xE0, 0x20, 0x20), (0x10, 0x40, 0xA0))
    meta = json.loads(job.artifacts["process/meta.json"].read_bytes())
    assert meta["source"]["sha256"] == job.artifacts["download/original.png"].sha256
    assert (meta["source"]["size"], meta["source"]["etag"], meta["source"]["status"]) == (len(data), '"1"', 200)


def test_a_picture_is_seen_as_it_is_meant_to_be_seen(packhorse: Bench, server: Web) -> None:
    """Turned by its EXIF, and of what is transparent no colour is told."""
    turned, clear = io.BytesIO(), Image.new("RGBA", (100, 100))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (300, 100), "#808080").save(turned, "JPEG", exif=exif)
    clear.paste("#00ff00", (0, 0, 50, 50))
    server.answer = by_path(
        turned=answering(200, turned.getvalue(), content_type="image/jpeg"),
        clear=answering(200, png(clear), content_type="application/octet-stream"),
    )

    job, report = fetched(packhorse, f"{server.url}/turned")
    other, of_clear = fetched(packhorse, f"{server.url}/clear")

    assert report.image is not None
    assert (report.image.width, report.image.height) == (100, 300)
    assert "download/original.jpg" in job.artifacts
    assert of_clear.image is not None
    assert [colour.hex for colour in of_clear.image.colours] == ["#00ff00"]
    with Image.open(other.artifacts["process/thumbnail.png"].path) as small:
        assert (small.size, small.mode, small.getpixel((99, 99))) == ((100, 100), "RGBA", (0, 0, 0, 0))


def test_fields_are_taken_out_of_json(packhorse: Bench, server: Web) -> None:
    server.answer = answering(200, json.dumps(sample.HORSES).encode(), content_type="application/json; charset=utf-8")
    wanted = {"names": "horses[*].name", "second": "horses[1].legs", "none": "horses[2].name", "odd": "count.x"}

    job, report = fetched(packhorse, f"{server.url}/horses", fields=wanted)
    _, whole = fetched(packhorse, f"{server.url}/horses")

    assert report.fields == {"names": ["Bayard", "Sleipnir"], "second": 8}
    assert report.missing == ["none", "odd"]
    assert whole.fields == {"count": 2}
    assert "download/original.json" in job.artifacts


def test_fields_are_taken_out_of_a_feed(packhorse: Bench, server: Web) -> None:
    server.answer = answering(200, sample.NEWS.encode(), content_type="application/rss+xml")

    _, report = fetched(
        packhorse, f"{server.url}/news", fields={"titles": "entries[*].title", "first": "entries[0].link"}
    )

    assert report.fields == {"titles": ["Oats are in", "The mare has foaled"], "first": "https://stable.example/1"}


def test_atom_and_rss_have_one_shape() -> None:
    atom = b"""<feed xmlns="http://www.w3.org/2005/Atom"><title>Stable</title><link href="https://stable.example/"/>
      <entry><title type="html">Oats <b>are</b> in</title><id>urn:1</id><link rel="self" href="https://x/"/>
      <link href="https://stable.example/1"/><updated>2026-01-01T00:00:00Z</updated><summary>All of them</summary>
      </entry></feed>"""

    assert feeds.feed(atom.decode()) == {
        "title": "Stable",
        "link": "https://stable.example/",
        "entries": [
            {
                "title": "Oats are in",
                "link": "https://stable.example/1",
                "id": "urn:1",
                "published": "2026-01-01T00:00:00Z",
                "summary": "All of them",
            }
        ],
    }


def test_what_is_nothing_of_it_or_is_not_to_be_looked_into_is_kept(packhorse: Bench, server: Web) -> None:
    server.answer = by_path(
        **{
            "page.html": answering(200, b"<html>", content_type="text/html"),
            "odd.tar": answering(200, b"?", content_type="application/x-odd"),
            "broken.json": answering(200, b"{", content_type="application/json"),
        }
    )

    page, _ = fetched(packhorse, f"{server.url}/page.html")
    odd, _ = fetched(packhorse, f"{server.url}/odd.tar?a=b.c")
    broken, report = fetched(packhorse, f"{server.url}/broken.json", post_process=False)

    assert {"download/original.html", "process/meta.json"} == page.artifacts.keys()
    assert "download/original.tar" in odd.artifacts
    assert (report.fields, "download/original.json" in broken.artifacts) == (None, True)


def test_what_was_fetched_is_found_by_name_and_day_for_seven_days(packhorse: Bench, server: Web) -> None:
    server.answer = answering(200, png(sample.picture()), content_type="image/png")
    objects = packhorse._place._objects / "published" / "default"

    job, _ = fetched(packhorse, server.url)
    packhorse.pass_time("6d23h")
    kept = {path.name for path in objects.rglob("*.*") if path.is_file()}
    packhorse.pass_time("2h")

    assert kept == {"original.png", "meta.json", "thumbnail.png"}
    assert job.is_purged
    assert not [path for path in objects.rglob("*") if path.is_file()]


# What goes wrong.


async def slow(_: Asked, writer: asyncio.StreamWriter) -> None:
    """A byte now and then, until whoever asked has gone."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    gone = asyncio.ensure_future(writer.wait_closed())
    try:
        while not gone.done():
            writer.write(b".")
            await writer.drain()
            await asyncio.wait([gone], timeout=0.05)
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


async def endless(_: Asked, writer: asyncio.StreamWriter) -> None:
    """As much as anybody takes."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def short(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nonly this")


async def silent(_: Asked, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def bomb() -> Answer:
    return answering(200, gzip.compress(b"\0" * 100_000_000, mtime=0), content_encoding="gzip")


AGAIN: dict[str, tuple[Answer, str]] = {
    "slow": (slow, "TIMEOUT"),
    "silent": (silent, "TIMEOUT"),
    "dropped": (dropping, "BAD_ANSWER"),
    "short": (short, "BAD_ANSWER"),
    "broken": (answering(500), "HTTP_500"),
    "busy": (answering(503), "HTTP_503"),
    "often": (answering(429), "HTTP_429"),
}
FINAL: dict[str, tuple[Answer, str]] = {
    "gone": (answering(404), "HTTP_404"),
    "forbidden": (answering(403), "HTTP_403"),
    "endless": (endless, "TOO_LARGE"),
    "huge": (answering(200, b"", content_length="99999999999"), "TOO_LARGE"),
    "bomb": (bomb(), "TOO_LARGE"),
    "loop": (answering(302, location="/loop"), "TOO_MANY_REDIRECTS"),
    "inside": (answering(302, location="http://169.254.169.254/latest/meta-data/"), "BLOCKED_ADDRESS"),
    "private": (answering(301, location="http://[::ffff:10.0.0.1]/"), "BLOCKED_ADDRESS"),
    "file": (answering(302, location="file:///etc/passwd"), "BLOCKED_ADDRESS"),
    "packed": (answering(200, b"no gzip", content_encoding="gzip"), "BAD_ENCODING"),
}


@pytest.mark.parametrize("case", AGAIN)
def test_what_may_pass_is_tried_again_and_again_later(packhorse: Bench, server: Web, case: str) -> None:
    server.answer, code = AGAIN[case]

    job = failed(packhorse, f"{server.url}/x", timeout_s=0.5 if code == "TIMEOUT" else 60.0)

    assert job.error is not None
    assert (job.error.code, job.attempts_of(download), job.error.permanent) == (code, 4, False)
    assert code in job.record.plan.revive.codes


@pytest.mark.parametrize("case", FINAL)
def test_what_will_not_pass_is_given_up_at_once(packhorse: Bench, server: Web, case: str) -> None:
    answer, code = FINAL[case]
    server.answer = by_path(**{case: answer})

    job = failed(packhorse, f"{server.url}/{case}", timeout_s=60.0, max_bytes=1_000_000)

    assert job.error is not None
    assert (job.error.code, job.error.permanent) == (code, True)
    assert job.attempts_of(download) == 1
    assert job.attempts_of(process) <= 1
    assert code not in job.record.plan.revive.codes


def test_a_key_with_a_line_end_is_given_up_at_once_and_shown_to_nobody(packhorse: Bench, server: Web) -> None:
    job = failed(packhorse, server.url, headers={"Authorization": Secret("Bearer s3cr3tvalue\n")})

    assert job.error is not None
    assert (job.error.code, job.error.permanent, job.attempts_of(download)) == ("BAD_HEADER", True, 1)
    assert "'Authorization'" in job.error.message
    assert "s3cr3t" not in f"{job.error.detail} {job.record} {job.log}"


def test_where_nobody_is_nothing_is_reached(packhorse: Bench, server: Web) -> None:
    with web_aside() as gone:
        pass

    assert failed(packhorse, gone.url).record.error.code == "UNREACHABLE"  # type: ignore[union-attr]
    assert failed(packhorse, "http://nobody.invalid/").record.error.code == "NOT_RESOLVED"  # type: ignore[union-attr]


def test_a_server_that_recovers_is_fetched_from(packhorse: Bench, server: Web) -> None:
    server.answer = in_turn(answering(500), dropping, answering(200, b"at last", content_type="text/plain"))

    job, _ = fetched(packhorse, server.url)

    assert job.attempts_of(download) == 3
    assert job.artifacts["download/original.txt"].read_bytes() == b"at last"


def test_a_redirect_is_followed_and_told(packhorse: Bench, server: Web) -> None:
    server.answer = by_path(
        old=answering(301, location="/new?a=b"), new=answering(200, b"here", content_type="text/plain")
    )

    _, report = fetched(packhorse, f"{server.url}/old")

    assert report.source.url == f"{server.url}/new?a=b"


def test_loopback_is_blocked_unless_the_operator_allows_it(
    packhorse: Bench, server: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOW)

    job = failed(packhorse, server.url)

    assert job.error is not None
    assert (job.error.code, job.attempts_of(download), server.connections) == ("BLOCKED_ADDRESS", 1, 0)


# What cannot be read is kept all the same.

LAUGHS = b"""<?xml version="1.0"?><!DOCTYPE rss [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>
<rss><channel><title>&b;</title></channel></rss>"""
OUTSIDE = b"""<?xml version="1.0"?><!DOCTYPE rss [<!ENTITY a SYSTEM "file:///etc/passwd">]>
<rss><channel><title>&a;</title></channel></rss>"""

UNREADABLE: dict[str, tuple[bytes, str, str]] = {
    "picture": (b"\x89PNG\r\n\x1a\nno", "image/png", "BAD_IMAGE"),
    "drawing": (b"<svg/>", "image/png", "WRONG_TYPE"),
    "apology": (b"<!doctype html><title>Sorry</title>", "application/json", "WRONG_TYPE"),
    "json": (b'{"a":', "application/json", "BAD_JSON"),
    "deep": (b"[" * 100_000, "application/json", "BAD_JSON"),
    "nan": (b'{"a": NaN}', "application/json", "BAD_JSON"),
    "open": (b"<rss><channel><title>Half", "text/xml", "BROKEN_FEED"),
    "no-feed": (b"<catalog/>", "application/rss+xml", "BAD_FEED"),
    "marked": (b"<!doctype html><![ x ]><title>x</title>", "text/html", "BAD_PAGE"),
    "marked-feed": (b"<rss><![ x ]><channel>", "text/xml", "BAD_FEED"),
    "nested": (b"<rss>" * 1000 + b"</rss>" * 1000, "text/xml", "BAD_FEED"),
    "bytes": (b'{"a": "' + b"\xff\xfe" * 40 + "né".encode() * 20 + b'"}', "application/json", "GUESSED_CHARSET"),
    "a-byte": (b'{"a": "' + b"a" * 500 + b'\xff"}', "application/json", "BAD_CHARSET"),
}


def looked_into(folder: Path, data: bytes, content_type: str = "", **wanted: str) -> Findings:
    path = folder / "original"
    path.write_bytes(data)
    return examine(path, type_of(path, content_type), content_type, wanted, folder / "thumbnail.png")


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_a_warning(tmp_path: Path, case: str) -> None:
    data, content_type, code = UNREADABLE[case]

    found = looked_into(tmp_path, data, content_type)

    assert code in [warning.code for warning in found.warnings]
    assert code in codes.WARNINGS


@pytest.mark.parametrize("piece", ["<!--", "<![CDATA[", "<![if", "<!", "<?", "</", "<a ", "<!--a-->", "&#1"])
@pytest.mark.parametrize(
    "begin", ["<!doctype html>", "<rss><channel>", "<rss><channel><title><p>", "<rss><title>]]>]>"]
)
def test_markup_that_nobody_closes_is_read_once(tmp_path: Path, begin: str, piece: str) -> None:
    """A reader that looks for each end anew would be at it for hours."""
    found = looked_into(tmp_path, f"{begin}{piece * 100_000}".encode(), "text/html" if "html" in begin else "text/xml")

    assert found.kind == ("page" if "html" in begin else "feed")


def test_one_broken_summary_leaves_a_feed_readable(tmp_path: Path) -> None:
    summary = "<description>&lt;b&gt;bold&lt;/b&gt; &lt;![ x ]&gt; end</description>"
    feed = f"<rss><channel><title>T</title><item><title>one</title>{summary}</item></channel></rss>"

    found = looked_into(tmp_path, feed.encode(), "text/xml", title="entries[0].title", text="entries[0].summary")

    assert found.fields == {"title": "one", "text": "bold end"}
    assert found.warnings == []


def test_only_the_head_of_a_large_page_and_no_huge_document_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse_fetch.examine.LARGEST", 100)
    monkeypatch.setattr("packhorse_fetch.examine.PAGE", 100)

    page = looked_into(tmp_path, b"<!doctype html><title>News</title>" + b" " * 100 + b"<base href=x>", "text/html")
    data = looked_into(tmp_path, b'{"a": 1}' + b" " * 100, "application/json", a="a")

    assert page.fields is not None
    assert (page.fields["title"], page.warnings) == ("News", [])
    assert ([each.code for each in data.warnings], data.missing) == (["NOT_READ"], ["a"])


def test_the_original_is_kept_and_said_to_be_stored_though_it_cannot_be_read(packhorse: Bench, server: Web) -> None:
    server.answer = answering(200, b'{"a":', content_type="application/json")

    job, report = fetched(packhorse, f"{server.url}/x", fields={"a": "a"})

    assert job.artifacts["download/original.json"].read_bytes() == b'{"a":'
    assert [(warning.code, warning.message) for warning in report.warnings] == [
        ("BAD_JSON", report.warnings[0].message)
    ]
    assert report.missing == ["a"]
    assert report.message.startswith("Fetched json: stored original.json, meta.json (application/json, 5 bytes). Mis")
    assert "BAD_JSON: It cannot be read as JSON" in report.message
    assert report.output is not None
    assert report.output.artifact == "download/original.json"
    assert json.loads(job.artifacts["process/meta.json"].read_bytes())["warnings"][0]["code"] == "BAD_JSON"


@pytest.mark.parametrize(("data", "code"), [(b'{"a":', "BAD_JSON"), (b'{"b": 1}', "MISSING_FIELDS")])
def test_what_a_schedule_requires_fails_the_job_at_once(packhorse: Bench, server: Web, data: bytes, code: str) -> None:
    server.answer = answering(200, data, content_type="application/json")

    job = failed(packhorse, server.url, required=True, fields={"a": "a"})

    assert job.error is not None
    assert (job.error.code, job.error.permanent, job.attempts_of(process)) == (code, True, 1)
    assert job.artifacts["download/original.json"].read_bytes() == data


def test_a_picture_that_is_too_large_is_not_even_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse_fetch.images.MOST_POINTS", 640 * 400 - 1)

    found = looked_into(tmp_path, png(sample.picture()))

    assert ([each.code for each in found.warnings], found.image) == (["IMAGE_TOO_LARGE"], None)


@pytest.mark.parametrize("data", [LAUGHS, OUTSIDE], ids=["laughs", "outside"])
def test_entities_that_a_feed_declares_are_not_expanded(tmp_path: Path, data: bytes) -> None:
    found = looked_into(tmp_path, data, "text/xml")

    assert found.fields in ({"title": "&b;"}, {"title": "&a;"})


# What it is, by its content.

PLAIN_RSS = '<rss version="0.91"><channel><title>Nouvelles du café &mdash; été</title></channel></rss>'
CHINESE = "<rss version='2.0'><channel><title>新聞中文網</title></channel></rss>"
RDF = """<?xml version="1.0" encoding="{charset}"?>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">
<channel rdf:about="https://a.example/"><title>馬</title><link>https://a.example/</link></channel>
<item rdf:about="https://a.example/1"><title>一</title><link>https://a.example/1</link></item></rdf:RDF>"""


def declaring(charset: str, text: str) -> bytes:
    return f'<?xml version="1.0" encoding="{charset}"?>{text}'.encode(charset)


@pytest.mark.parametrize("charset", ["gb2312", "gbk", "gb18030", "big5", "euc-kr", "shift_jis", "utf-16", "cp1251"])
@pytest.mark.parametrize("where", ["document", "header"])
def test_a_declared_charset_is_decoded(tmp_path: Path, charset: str, where: str) -> None:
    words = {"euc-kr": "말", "shift_jis": "馬がいる", "big5": "新聞中文網", "utf-16": "馬é", "cp1251": "Лошадь"}
    text = words.get(charset, "新闻中文网")
    rss = f"<rss><channel><title>{text}</title></channel></rss>"
    data = (
        declaring(charset, rss)
        if where == "document"
        else json.dumps({"title": text}, ensure_ascii=False).encode(charset)
    )

    found = looked_into(tmp_path, data, "text/xml" if where == "document" else f"application/json; charset={charset}")

    assert (found.fields, found.warnings) == ({"title": text}, [])


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("caf&eacute; &amp; cr&egrave;me", "café & crème"),
        ("caf&amp;eacute; &lt;b&gt;noir&lt;/b&gt;", "café noir"),
        ("<![CDATA[caf&eacute; <i>noir</i>]]>", "café noir"),
        ("R&D for 1 &lt; 2 &#151; &nosuch;", "R&D for 1 < 2 — &nosuch;"),
    ],
)
def test_entities_of_html_are_decoded_in_a_feed(tmp_path: Path, text: str, title: str) -> None:
    doctype = (
        '<!DOCTYPE rss PUBLIC "-//Netscape Communications//DTD RSS 0.91//EN" "http://my.netscape.com/rss-0.91.dtd">'
    )
    data = f'<?xml version="1.0" encoding="ISO-8859-1"?>{doctype}<rss version="0.91"><channel><title>{text}</title>'

    found = looked_into(tmp_path, f"{data}<link>https://a.example/</link></channel></rss>".encode(), "text/xml")

    assert (found.fields, found.warnings) == ({"title": title, "link": "https://a.example/"}, [])


@pytest.mark.parametrize(
    ("data", "content_type", "kind", "suffix"),
    [
        (RDF.format(charset="utf-8").encode(), "application/rdf+xml", "feed", "xml"),
        (sample.NEWS.encode(), "text/html; charset=utf-8", "feed", "xml"),
        (sample.NEWS.encode(), "text/plain", "feed", "xml"),
        (b' {"count": 2}', "text/plain", "json", "json"),
        (b'[{"count": 2}]\n', "text/html", "json", "json"),
        (b"\xff\xd8\xff\xe0", "text/html", "image", "jpg"),
        (b"<!-- x -->\n<!DOCTYPE html><html></html>", "", "page", "html"),
        (b"<?xml version='1.0'?><catalog/>", "text/xml", "xml", "xml"),
        (b"[note] not JSON", "text/plain", "other", "txt"),
        (b"<3 horses", "text/plain", "other", "txt"),
        (b"\0\0\1\0\1\0\x10\x10\0\0", "image/vnd.microsoft.icon", "image", "ico"),
    ],
)
def test_the_content_says_what_it_is(tmp_path: Path, data: bytes, content_type: str, kind: str, suffix: str) -> None:
    (tmp_path / "file").write_bytes(data)

    found = type_of(tmp_path / "file", content_type)

    assert (kinds.kind(found), kinds.suffix(found, "https://a.example/")) == (kind, suffix)


def test_rss_1_has_its_fields_whatever_the_server_calls_it(tmp_path: Path) -> None:
    data = RDF.format(charset="big5").encode("big5")

    found = looked_into(
        tmp_path, data, "application/rdf+xml", title="title", ids="entries[*].id", when="entries[*].published"
    )

    assert found.fields == {"title": "馬", "ids": ["https://a.example/1"]}
    assert found.missing == ["when"]


def test_a_page_says_what_it_is_about(tmp_path: Path) -> None:
    page = """<html lang="zh"><head><meta charset="gbk"><title>马 &amp; 人</title><meta name=description content="马">
      <link rel=alternate type="application/rss+xml" href="/feed"><link rel=canonical href="https://a.example/b">
      </head><body><svg><title>no</title></svg></body></html>"""

    found = looked_into(tmp_path, page.encode("gbk"), "text/html", title="title", feeds="feeds[*].link", image="image")

    assert found.fields == {"title": "马 & 人", "feeds": ["/feed"]}
    assert (found.missing, found.charset) == (["image"], "gb18030")


@pytest.mark.parametrize("format", ["AVIF", "BMP", "TIFF", "ICO", "JPEG2000"])
def test_pictures_of_other_formats_are_measured(tmp_path: Path, format: str) -> None:
    made = io.BytesIO()
    sample.picture().resize((64, 40)).save(made, format, **({"sizes": [(64, 40)]} if format == "ICO" else {}))

    found = looked_into(tmp_path, made.getvalue(), "text/html")

    assert found.image is not None
    assert (found.image.format, found.image.width, found.image.height) == (format, 64, 40)
    assert (tmp_path / "thumbnail.png").exists()


def test_grey_of_sixteen_bits_keeps_its_shades(tmp_path: Path) -> None:
    grey = Image.new("I;16", (100, 100), 60_000)
    grey.paste(20_000, (0, 0, 100, 50))

    found = looked_into(tmp_path, png(grey))

    assert found.image is not None
    assert sorted(colour.hex for colour in found.image.colours) == ["#000000", "#ffffff"]


# Keys.


def test_keys_are_sent_and_nowhere_to_be_seen(packhorse: Bench, server: Web) -> None:
    server.answer = by_path(
        old=answering(302, location="/new?api_key=hush%20hush&x=1"),
        new=answering(200, b"{}", content_type="application/json"),
    )

    job, report = fetched(
        packhorse, f"{server.url}/old", params={"api_key": Secret("hush hush")}, headers={"X-Token": Secret("s3cr3t!")}
    )

    assert server.asked[0].path == "/old?api_key=hush+hush"
    assert server.asked[0].headers["x-token"] == "s3cr3t!"
    assert report.source.url == f"{server.url}/new"
    written = job.artifacts["process/meta.json"].read_text() + repr(job.record) + repr(job.events) + "".join(job.log)
    assert "hush" not in written
    assert "s3cr3t!" not in written


def test_a_key_that_the_server_repeats_is_masked_in_everything_we_write(packhorse: Bench, server: Web) -> None:
    """The body is the server's: it is kept as it came."""
    body = b'{"asked": "/x?api_key=hush+hush", "token": "czNjcjN0IQ==", "plain": "hush hush"}'
    server.answer = answering(200, body, content_type="application/json", etag='"hush hush"')

    job, report = fetched(
        packhorse, server.url, params={"api_key": Secret("hush hush")}, headers={"X-Token": Secret("s3cr3t!")}
    )

    meta = job.artifacts["process/meta.json"].read_text()
    assert "hush" not in meta + repr(report)
    assert "czNjcjN0IQ" not in meta + repr(report)
    assert json.loads(meta)["fields"]["plain"] == "••••"
    assert job.artifacts["download/original.json"].read_bytes() == body


def test_keys_do_not_travel_where_everybody_can_read_them(packhorse: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW, raising=False)

    job = failed(packhorse, "http://feeds.example/", params={"api_key": Secret("hush hush")})

    assert job.error is not None
    assert (job.error.code, "https" in job.error.message) == ("BLOCKED_ADDRESS", True)


# What is remembered.


def test_only_what_is_young_is_remembered() -> None:
    source = {
        "url": "u",
        "status": 200,
        "is_unchanged": False,
        "fetched_at": "2126-01-01T00:00:00+00:00",
        "etag": '"1"',
    }

    assert remembered({"source": source}) == Source("u", 200, False, "2126-01-01T00:00:00+00:00", etag='"1"')
    assert remembered({"source": {**source, "fetched_at": "2026-01-01T00:00:00+00:00"}}) is None
    assert [remembered(odd) for odd in (None, 1, {}, {"source": {"url": 1}})] == [None] * 4


def test_what_was_found_in_it_still_holds_while_it_does_not_change() -> None:
    source = Source("u", 304, True, "2026-01-01T00:00:00+00:00")
    before = {"source": {}, "message": "", "fields": {"a": 1}, "missing": ["b"]}

    assert unchanged({**before, "source": msgspec.to_builtins(source)}, source) == Report(
        source, "Not changed since 2026-01-01T00:00:00+00:00.", fields={"a": 1}, missing=["b"]
    )
    assert unchanged(before, source).fields is unchanged(None, source).fields is None


# Schedules from a file.


def test_schedules_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NASA_KEY", "hush hush\n")
    job = {"job_id": "apod-daily", "cron": "0 8 * * *", "fetch_url": "https://a.example/", "active": False}
    (tmp_path / "jobs.json").write_text(json.dumps({"job": [{**job, "params": {"api_key": {"env": "NASA_KEY"}}}]}))
    sample.make(tmp_path, "http://127.0.0.1:3010")

    [(clock, what)] = config.jobs(tmp_path / "jobs.json", Fetch)
    made = {clock.job_id: what for clock, what in config.jobs(tmp_path / "jobs.toml", Fetch)}

    assert (clock.job_id, clock.cron, clock.active, clock.zone) == ("apod-daily", "0 8 * * *", False, "UTC")
    assert what == Fetch(fetch_url="https://a.example/", params={"api_key": Secret("hush hush")})
    assert made.keys() == {"picture-daily", "horses", "news"}
    assert made["horses"].fields == {"names": "horses[*].name", "legs": "horses[1].legs"}


@pytest.mark.parametrize("form", ["one", "list", "named"])
def test_the_sources_job_config_is_taken_from_a_file(tmp_path: Path, form: str) -> None:
    one = JOB_CONFIG if form == "one" else f"[{JOB_CONFIG}]"
    (tmp_path / "jobs.json").write_text(f'{{"job_config": {one}}}' if form == "named" else one)

    [(clock, what)] = config.jobs(tmp_path / "jobs.json", Fetch)

    assert (clock.job_id, clock.cron, clock.active) == ("apod-daily", "0 8 * * *", True)
    assert what == Fetch(fetch_url="https://api.nasa.gov/...", params={"api_key": Secret("...")})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"job": [{"job_id": "a", "cron": "* * * * *"}]}', "Job a of .*fetch_url"),
        ('{"job": [{"job_id": "a", "cron": "* * * * *", "fetch_url": "ftp://x"}]}', "Job a of .*fetch_url"),
        ('{"job": [{"cron": "* * * * *", "fetch_url": "https://x"}]}', "Job 1 of .*job_id"),
        ('{"job": [{"job_id": "a", "cron": "* * * * *", "fetch_url": "https://x", "odd": 1}]}', "Job a of .*odd"),
        (
            '{"job": [{"job_id": "a", "cron": "* * * * *", "fetch_url": "https://x", "params": {"k": {"env": "NO"}}}]}',
            "Job a of .*no variable 'NO'",
        ),
        ('{"jobs": []}', "cannot be read: It has 'jobs'"),
        ("{", "cannot be read"),
    ],
    ids=["no-url", "no-http", "no-id", "unknown", "no-variable", "no-job", "torn"],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "jobs.json").write_text(text)

    with pytest.raises(ValueError, match=why):
        list(config.jobs(tmp_path / "jobs.json", Fetch))


# What is said of it.


def test_the_readme_lists_every_code_once_and_what_becomes_of_it() -> None:
    told = README.read_text()

    for code, meaning in {**codes.AGAIN, **codes.FINAL, **codes.WARNINGS}.items():
        becomes = "warning" if code in codes.WARNINGS else "yes" if code in codes.AGAIN else "no"
        assert told.count(f"| `{code}` |") == 1
        assert f"| `{code}` | {becomes} | {meaning} |" in told


def test_every_code_that_the_cases_show_is_a_known_one() -> None:
    shown = {code for _, code in (AGAIN | FINAL).values()} - {"HTTP_403"}

    assert shown <= codes.AGAIN.keys() | codes.FINAL.keys()
    assert all(codes.is_final(code) == (code in codes.FINAL) for code in {**codes.AGAIN, **codes.FINAL})
    assert not codes.is_final("HTTP_521")


@pytest.mark.parametrize(
    ("said", "data", "expected"),
    [
        ("image/PNG; x=y", b"", "image/png"),
        ("", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("application/octet-stream", b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        ("", b"\xef\xbb\xbf {}", "application/json"),
        ("", b"<?xml ", "application/xml"),
        ("", b"who knows", "application/octet-stream"),
    ],
)
def test_a_type_is_what_the_server_says_or_how_it_begins(said: str, data: bytes, expected: str) -> None:
    assert kinds.media_type(said, data) == expected


@pytest.mark.parametrize("path", ["a.b", "a[0].b", "[*].x", "a[*][1]", "ä b.c"])
def test_paths_are_read(path: str) -> None:
    import re

    assert re.search(fields.PATH, path)


@pytest.mark.parametrize("path", ["", ".a", "a.", "a[", "a[x]", "a..b", "a[1]b"])
def test_what_is_no_path_is_refused(path: str) -> None:
    import re

    assert not re.search(fields.PATH, path)


# The evaluation.

EXPECTING = b"""<!--
Description: item title
Expect:      not bozo and entries[0]['title'] == 'Caf\xc3\xa9' and feed['title'] == 'Other'
-->
<rss version="2.0"><channel><title>News</title><item><title>Caf&eacute;</title></item></channel></rss>"""


def test_the_evaluation_counts_what_is_read_as_expected(tmp_path: Path) -> None:
    feed = tmp_path / "feedparser" / "tests" / "wellformed" / "rss" / "item_title.xml"
    feed.parent.mkdir(parents=True)
    feed.write_bytes(EXPECTING)
    part = "held-out" if evaluate.is_held_out(feed.relative_to(tmp_path).as_posix()) else "seen"
    (tmp_path / "imagesize" / "imagesize").mkdir(parents=True)
    (tmp_path / "imagesize" / "imagesize" / "imagesize.py").write_text("")

    assert evaluate.run(tmp_path, part) == {"feeds of feedparser's tests": [1, 2]}
    assert evaluate.run(tmp_path, "held-out" if part == "seen" else "seen") == {}
