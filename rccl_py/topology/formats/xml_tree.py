"""An XML file as light elements that remember their line; no entities, no depth.

Owns the text of the file and the sentences that say where it is broken. Knows nothing of what the
elements mean. Every failure is one FormatError that opens with the file and, where there is one,
the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from ...errors import FormatError

__all__ = ["Comment", "Element", "Notes", "parse_tree", "read_tree", "root_name"]

Comment = tuple[int, str]
"""Line and text of a comment."""

_SIZE_LIMIT = 8 << 20  # bytes; the largest real files have some tens of kilobytes
_DEPTH_LIMIT = 64  # real PCI trees are about ten bridges deep
_ELEMENT_LIMIT = 50_000  # NCCL itself holds 1,024 a host; some 100 MB of objects here
_COMMENT_LIMIT = 1000  # kept; more are skipped
_NOTE_LIMIT = 100  # different remarks that are kept
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}|0[xX][0-9a-fA-F]{1,16}")
_NAME = re.compile(r"<([A-Za-z_][\w.:-]{0,80})(?=[\s/>])")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{0,18})?([eE][+-]?[0-9]{1,2})?")


@dataclass(slots=True, eq=False)
class Element:
    """One element: its name, attributes as texts, children in order, and where it begins."""

    name: str
    attributes: dict[str, str]
    file: Path
    line: int
    parent: Element | None = field(default=None, repr=False)
    children: list[Element] = field(default_factory=list, repr=False)
    words: list[str] = field(default_factory=list, repr=False)
    """Text directly inside the element, in pieces; empty unless its reader asked for it."""

    def error(self, message: str) -> FormatError:
        """Return a FormatError that opens with this element's file and line."""
        return FormatError(f"{self.file}:{self.line}: {message}")

    def walk(self) -> Iterator[Element]:
        """Return this element and all below it, in document order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def named(self, *names: str) -> list[Element]:
        """Return the children called one of `names`."""
        return [child for child in self.children if child.name in names]

    def text(self, name: str) -> str:
        """Return attribute `name` without outer blanks; "" when it is absent.

        What cannot be printed becomes "?", so that every message and table stays one line.
        """
        text = self.attributes.get(name, "").strip()
        return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)

    def integer(self, name: str) -> int | None:
        """Return attribute `name` as a whole number (decimal or 0x hex); None when absent."""
        text = self.text(name)
        if not text:
            return None
        if not _INTEGER.fullmatch(text):
            raise self.error(f"<{self.name}> {name}={text[:40]!r} is not a whole number")
        return int(text, 16) if text[:2].lower() == "0x" else int(text)

    def number(self, name: str) -> float | None:
        """Return attribute `name` as a number; None when absent."""
        text = self.text(name)
        if not text:
            return None
        if not _NUMBER.fullmatch(text):
            raise self.error(f"<{self.name}> {name}={text[:40]!r} is not a number")
        return float(text)


@dataclass(slots=True)
class Notes:
    """Remarks on a file, each once, with how often it applies and the line it first does."""

    found: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, text: str, line: int = 0) -> None:
        """Remember `text`; line 0 stands for the whole file."""
        if len(self.found) >= _NOTE_LIMIT and text not in self.found:
            text = "further remarks are left out"
        count, first = self.found.get(text, (0, line))
        self.found[text] = (count + 1, first)

    def lines(self) -> tuple[str, ...]:
        """Return one short line a remark."""
        return tuple(
            text + (f" (line {line})" if count == 1 else f" ({count} times, first on line {line})")
            if line
            else text
            for text, (count, line) in self.found.items()
        )


@dataclass(slots=True)
class _Builder:
    """What the parser's callbacks fill: the root, and the elements open right now."""

    file: Path
    parser: expat.XMLParserType
    notes: Notes
    expected: str = "system"
    with_doctype: bool = False
    root: Element | None = None
    open: list[Element] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    count: int = 0

    def fail(self, message: str) -> NoReturn:
        raise FormatError(f"{self.file}:{self.parser.CurrentLineNumber}: {message}")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.open) >= _DEPTH_LIMIT:
            self.fail(f"<{name}> is nested deeper than {_DEPTH_LIMIT} elements")
        self.count += 1
        if self.count > _ELEMENT_LIMIT:
            self.fail(f"more than {_ELEMENT_LIMIT} elements: this is no topology of one machine")
        parent = self.open[-1] if self.open else None
        element = Element(name, attributes, self.file, self.parser.CurrentLineNumber, parent)
        if parent is None:
            self.root = element
        else:
            parent.children.append(element)
        self.open.append(element)

    def end(self, _: str) -> None:
        self.open.pop()

    def characters(self, text: str) -> None:
        if self.with_doctype and self.open:
            self.open[-1].words.append(text)
        elif text.strip():
            self.notes.add("text between elements is ignored", self.parser.CurrentLineNumber)

    def comment(self, text: str) -> None:
        if len(self.comments) < _COMMENT_LIMIT:
            self.comments.append((self.parser.CurrentLineNumber, text))

    def doctype(self, name: str, _system: object, _public: object, subset: object) -> None:
        if not self.with_doctype:
            self.fail("a DOCTYPE is not accepted: topology files have none, and no entities")
        if subset or name != self.expected:
            self.fail(
                f"only a plain <!DOCTYPE {self.expected} SYSTEM ...> is accepted, without "
                "declarations or entities of its own"
            )

    def entity(self, *_: object) -> None:
        self.fail("an entity is used or declared: topology files have none")


def root_name(text: str) -> str:
    """Return the name of the first element of an XML text, "" when it opens as something else."""
    at, skipped = 0, {"<?": "?>", "<!--": "-->", "<!": ">"}
    text = text.removeprefix("\ufeff")
    while True:
        at += len(text[at : at + 4096]) - len(text[at : at + 4096].lstrip())
        opening = next((o for o in skipped if text.startswith(o, at)), None)
        if opening is None:
            if text[at : at + 1].isspace():
                continue
            found = _NAME.match(text, at)
            return found[1] if found else ""
        end = text.find(skipped[opening], at + len(opening))
        if end < 0:
            return ""
        at = end + len(skipped[opening])


def _bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise FormatError(f"{path}: is a folder: a topology XML file was expected")
        if not path.exists():
            raise FormatError(f"{path}: no such file")
        if not path.is_file():
            raise FormatError(f"{path}: is not a regular file")
        size = path.stat().st_size
        if size > _SIZE_LIMIT:
            raise FormatError(f"{path}: {size} bytes is no topology file (limit {_SIZE_LIMIT})")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{path}: cannot be read: {reason}") from None


def _reason(error: expat.ExpatError, builder: _Builder) -> str:
    """Return what is wrong in words of this format, not of the parser."""
    text = expat.ErrorString(error.code)
    if "not at start" in text:
        return "blanks or text stand before the <?xml ...?> declaration: it must open the file"
    if text in ("no element found", "unclosed token") and builder.open:
        last = builder.open[-1]
        return f"the file ends inside <{last.name}> opened on line {last.line}: it is cut short"
    if text == "mismatched tag" and builder.open:
        last = builder.open[-1]
        return f"a closing tag that does not match <{last.name}> opened on line {last.line}"
    if text == "no element found":
        return f"no XML element is found: a <{builder.expected}> element was expected"
    return f"not well-formed XML: {text}, column {error.offset + 1}"


def read_tree(
    path: Path,
    notes: Notes,
    comments: list[Comment] | None = None,
    *,
    expected: str = "system",
    with_doctype: bool = False,
) -> Element:
    """Return the root element of the XML file at `path`; remarks go to `notes`.

    comments: filled with the comments, in order. expected: the root's name, for messages.
    with_doctype: accept a DOCTYPE that only names a file (it is never opened), and keep the text
    inside elements in `words`. Raises FormatError when it cannot be read, is not well-formed, has
    another DOCTYPE or an entity, is nested deeper than 64 elements, or has more than 50,000.
    """
    return parse_tree(
        _bytes(path), path, notes, comments, expected=expected, with_doctype=with_doctype
    )


def parse_tree(
    data: bytes,
    path: Path,
    notes: Notes,
    comments: list[Comment] | None = None,
    *,
    expected: str = "system",
    with_doctype: bool = False,
) -> Element:
    """Return the root element of `data`, which errors call `path`: see read_tree."""
    if not data.strip():
        raise FormatError(f"{path}:1: the file is empty: a <{expected}> element was expected")
    parser = expat.ParserCreate()
    parser.buffer_text = True
    builder = _Builder(path, parser, notes, expected, with_doctype)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.characters
    parser.StartDoctypeDeclHandler = builder.doctype
    parser.EntityDeclHandler = builder.entity
    parser.SkippedEntityHandler = builder.entity
    parser.CommentHandler = builder.comment
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise FormatError(f"{path}:{error.lineno}: {_reason(error, builder)}") from None
    except (LookupError, ValueError) as error:  # an encoding Python does not know or cannot map
        raise FormatError(f"{path}:1: the encoding cannot be read: {error}") from None
    if builder.root is None:
        raise FormatError(f"{path}:1: no element is found: a <{expected}> element was expected")
    if comments is not None:
        comments += builder.comments
    return builder.root
