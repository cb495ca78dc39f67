"""Text from bytes: the declared charset if the bytes fit it, else UTF-8, else the most likely one."""

from __future__ import annotations

import codecs
import re

import msgspec

BOMS = (  # the longer ones first: that of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
UNMARKED = (  # "<" followed by anything in ASCII, or "<?xm" in EBCDIC
    (b"<\0\0\0", "utf-32-le"),
    (b"\0\0\0<", "utf-32-be"),
    (b"<\0", "utf-16-le"),
    (b"\0<", "utf-16-be"),
    (b"\x4c\x6f\xa7\x94", "cp037"),
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "gb2312": ("gb18030",),
    "gbk": ("gb18030",),
    "big5": ("big5hkscs", "cp950"),
    "shift_jis": ("cp932", "shift_jis_2004"),
    "euc_jp": ("euc_jp", "euc_jis_2004"),
    "euc_kr": ("cp949",),
    "johab": ("johab", "cp949"),
    "ascii": ("cp1252",),
    "iso8859-1": ("cp1252", "latin-1"),
    "iso8859-9": ("cp1254", "iso8859-9"),
    "iso8859-11": ("cp874",),
    "tis-620": ("cp874",),
    "utf-16": ("utf-16-le", "utf-16-be"),
    "utf-32": ("utf-32-le", "utf-32-be"),
}
"""What servers mean by a name: browsers read these supersets, too (encoding.spec.whatwg.org)."""
ALIASES = {
    "x-gbk": "gbk",
    "x-sjis": "shift_jis",
    "windows-31j": "cp932",
    "x-euc-jp": "euc_jp",
    "ks_c_5601-1987": "euc_kr",
    "windows-949": "cp949",
    "x-mac-roman": "mac_roman",
    "macintosh": "mac_roman",
    "x-mac-cyrillic": "mac_cyrillic",
    "maccyrillic": "mac_cyrillic",
    "windows-874": "cp874",
    "iso-8859-8-i": "iso8859-8",
    "x-big5": "big5",
    "unicode-1-1-utf-8": "utf-8",
    "x-cp1251": "cp1251",
    "x-cp1252": "cp1252",
}
NOT_TEXT = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "unicode-escape"})
MULTIBYTE = re.compile(r"gb|big5|shift|sjis|euc|932|949|950|johab|2022|hz|utf")
IN_XML = re.compile(r"""^\s*<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z0-9._:-]{1,40})["']""")
IN_HTML = re.compile(r"""<meta[^>]{0,200}?\bcharset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
IN_HEADER = re.compile(r"""charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
HEAD = 4096  # bytes in which a document declares its charset
SAMPLE = 128 * 1024  # bytes from which a charset is guessed
TOLERATED = 0.01  # share of characters that cannot be decoded with which a declared charset still counts


class Text(msgspec.Struct, frozen=True):
    text: str
    charset: str
    is_guessed: bool = False  # nothing was declared, or the bytes do not fit what was
    replaced: int = 0  # characters that could not be decoded


def decode(data: bytes, content_type: str = "") -> Text:
    """The text of a document. A byte order mark counts most, then the header, then what the document says."""
    for mark, name in BOMS:
        if data.startswith(mark):
            return _replacing(data[len(mark) :], name)
    declared = declared_charsets(data, content_type)
    tries = [each for name in declared for each in VARIANTS.get(name, (name,))]
    is_utf8 = _strict(data, "utf-8") is not None
    if is_utf8 and not data.isascii() and all(not MULTIBYTE.search(each) for each in tries):
        return Text(data.decode(), "utf-8")  # text of a single-byte charset is never UTF-8 by chance
    for name in (*tries, "utf-8"):
        if (text := _strict(data, name)) is not None:
            return Text(text, name)
    best = min((_replacing(data, name) for name in (*tries, "utf-8")), key=lambda each: each.replaced)
    if best.replaced <= TOLERATED * len(best.text):
        return best
    return _guess(data)


def beginning(data: bytes) -> str:
    """How a document begins, for a look at its markup: ASCII is right, whatever the charset."""
    for mark, name in BOMS + UNMARKED:
        if data.startswith(mark):
            return data[:HEAD].decode(name, "replace").lstrip("\ufeff")
    return data[:HEAD].decode("latin-1")


def declared_charsets(data: bytes, content_type: str) -> list[str]:
    """By the header, then by the document; names that no codec has are left out."""
    head = beginning(data)
    found = [IN_HEADER.search(content_type), IN_XML.search(head), IN_HTML.search(head)]
    names = [name for each in found if each and (name := _known(each[1]))]
    for mark, name in UNMARKED:
        if data.startswith(mark):
            names.insert(0, name)
            break
    return list(dict.fromkeys(names))


def _known(label: str) -> str | None:
    """The codec's own name of a text charset."""
    name = ALIASES.get(label.lower(), label.lower())
    try:
        found = codecs.lookup(name).name
        b"".decode(found)  # raises for codecs that are none of text, as "hex"
    except (LookupError, ValueError):
        return None
    return None if found in NOT_TEXT else found


def _strict(data: bytes, name: str) -> str | None:
    try:
        return data.decode(name)
    except ValueError:
        return None


def _replacing(data: bytes, name: str) -> Text:
    text = data.decode(name, "replace")
    return Text(text, name, replaced=text.count("\ufffd"))


def _guess(data: bytes) -> Text:
    from charset_normalizer import from_bytes  # loaded late: few documents need it

    found = from_bytes(data[:SAMPLE]).best()
    name = "cp1252" if found is None else found.encoding
    text = data.decode(name, "replace")
    return Text(text, name, is_guessed=True, replaced=text.count("\ufffd"))
