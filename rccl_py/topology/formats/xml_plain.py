"""Other tools' XML as elements with their line and text: GraphML keeps its values as text.

Owns how such a file is parsed: a DOCTYPE that only names a DTD is skipped and never fetched; a
DOCTYPE with declarations of its own, and every entity, is refused. Knows nothing of what the
elements mean. Every failure is one FormatError that opens with the file and, where there is one,
the line. Names lose their namespace prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from ...errors import FormatError
from .quantities import clean, read_text, without
from .xml_tree import Element

__all__ = ["Part", "read_parts"]

_DEPTH_LIMIT = 64  # zones in zones and graphs in nodes are a few deep
_COUNT_LIMIT = 200_000  # elements: some 100 MB


@dataclass(slots=True, eq=False)
class Part(Element):
    """One element; `content` is the text directly inside it."""

    content: str = ""
    parts: list[Part] = field(default_factory=list, repr=False)

    def all(self, *names: str) -> list[Part]:
        """Return the children called one of `names`."""
        return [part for part in self.parts if part.name in names]


@dataclass(slots=True)
class _Builder:
    """What the parser's callbacks fill: the root, and the elements open right now."""

    file: Path
    parser: expat.XMLParserType
    root: Part | None = None
    open: list[Part] = field(default_factory=list)
    count: int = 0

    def fail(self, message: str) -> NoReturn:
        raise FormatError(f"{self.file}:{self.parser.CurrentLineNumber}: {message}")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.open) >= _DEPTH_LIMIT:
            self.fail(f"<{clean(name[:40])}> is nested deeper than {_DEPTH_LIMIT} elements")
        if self.count > _COUNT_LIMIT:
            self.fail(f"more than {_COUNT_LIMIT} elements: this is no machine")
        above = self.open[-1] if self.open else None
        name = clean(name[:200].rpartition(":")[2])
        part = Part(name, attributes, self.file, self.parser.CurrentLineNumber, above)
        if above is None:
            self.root = part
        else:
            above.parts.append(part)
        self.open.append(part)

    def end(self, _: str) -> None:
        self.open.pop()

    def characters(self, text: str) -> None:
        if self.open:
            self.open[-1].content += text

    def doctype(self, name: str, system: str | None, public: str | None, inside: int) -> None:
        if inside:
            self.fail("a DOCTYPE with declarations of its own is not accepted: no entity is read")

    def entity(self, *_: object) -> None:
        self.fail("an entity is not accepted: write its text instead")


def _parser(path: Path) -> tuple[expat.XMLParserType, _Builder]:
    parser = expat.ParserCreate()
    parser.buffer_text = True
    builder = _Builder(path, parser)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.characters
    parser.StartDoctypeDeclHandler = builder.doctype
    parser.EntityDeclHandler = builder.entity
    parser.SkippedEntityHandler = builder.entity
    return parser, builder


def _refuse_entities(path: Path, text: str) -> None:
    """Refuse every entity but XML's own five: with a DOCTYPE, expat drops those in attributes."""
    bare = without(without(text, "<!--", "-->"), "<![CDATA[", "]]>")
    found = re.search(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]+|#x[0-9a-fA-F]+);)[\w:]", bare)
    if found is not None:
        line = bare.count("\n", 0, found.start()) + 1
        raise FormatError(f"{path}:{line}: an entity is not accepted: write its text instead")


def read_parts(path: Path, what: str) -> Part:
    """Return the root element of the XML file at `path`, which should be `what`.

    Raises FormatError when it cannot be read, is not well-formed, or is beyond the limits.
    """
    text = read_text(path, what)
    if "<!DOCTYPE" in text:
        _refuse_entities(path, text)
    parser, builder = _parser(path)
    try:
        # The text is decoded: the encoding that the declaration names has done its work.
        parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        last = builder.open[-1] if builder.open else None
        inside = f" inside <{last.name}> opened on line {last.line}" if last else ""
        raise FormatError(f"{path}:{error.lineno}: not well-formed XML{inside}: "
                          f"{expat.ErrorString(error.code)}") from None  # fmt: skip
    except (LookupError, ValueError) as error:  # an encoding Python does not know or cannot map
        raise FormatError(f"{path}:1: the encoding cannot be read: {clean(str(error))}") from None
    if builder.root is None:
        raise FormatError(f"{path}:1: no XML element is found: {what} was expected")
    return builder.root
