"""The text of a schedule's file: read within limits, its XML as elements, its JSON as values.

Owns the limits and the sentences that say where a file is broken (file, line). Knows nothing of
what is in it. Every failure is one FormatError of one line.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from ..errors import FormatError
from ..topology.formats.xml_tree import Element

__all__ = ["clean", "json_of", "text_of", "uncollected", "xml_of"]

_SIZE_LIMIT = 16 << 20  # bytes; plans for 64 ranks have some two megabytes
_ELEMENT_LIMIT = 250_000  # some 200 MB of objects; 64 ranks have some 25,000
_DEPTH_LIMIT = 8  # algo, gpu, tb, step


def clean(value: object, most: int = 60) -> str:
    """Return a value as one short printable line."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python's collector of cycles, if it is on, from running while many objects are made.

    It finds nothing in them, and takes a third of the time. Where threads overlap, the one that
    switched it off switches it on.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def text_of(path: Path) -> bytes:
    """Return the bytes of a file. Raises FormatError where it cannot be read or is too large."""
    try:
        if not path.exists():
            raise FormatError(f"{path}: no such file")
        if not path.is_file():
            raise FormatError(f"{path}: is no regular file: MSCCL XML or MSCCL++ JSON was expected")
        size = path.stat().st_size
        if size > _SIZE_LIMIT:
            raise FormatError(f"{path}: {size} bytes is no schedule (limit {_SIZE_LIMIT})")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{path}: cannot be read: {reason}") from None


@dataclass(slots=True)
class _Builder:
    file: Path
    parser: expat.XMLParserType
    root: Element | None = None
    open: list[Element] = field(default_factory=list)
    count: int = 0

    def fail(self, message: str) -> NoReturn:
        raise FormatError(f"{self.file}:{self.parser.CurrentLineNumber}: {message}")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.open) >= _DEPTH_LIMIT:
            self.fail(f"<{name[:40]}> is nested deeper than {_DEPTH_LIMIT} elements")
        if self.count > _ELEMENT_LIMIT:
            self.fail(f"more than {_ELEMENT_LIMIT} elements: too large to be followed")
        parent = self.open[-1] if self.open else None
        element = Element(name, attributes, self.file, self.parser.CurrentLineNumber, parent)
        if parent is None:
            self.root = element
        else:
            parent.children.append(element)
        self.open.append(element)

    def end(self, _: str) -> None:
        self.open.pop()

    def refuse(self, *_: object) -> None:
        self.fail("a DOCTYPE or entity is not accepted: MSCCL XML has none")


def xml_of(data: bytes, path: Path) -> Element:
    """Return the root element of an XML text, which errors call `path`.

    Raises FormatError with file and line where it is not well-formed, has a DOCTYPE or an entity,
    or is larger or deeper than any schedule.
    """
    parser = expat.ParserCreate()
    builder = _Builder(path, parser)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.StartDoctypeDeclHandler = builder.refuse
    parser.EntityDeclHandler = builder.refuse
    parser.SkippedEntityHandler = builder.refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        last = builder.open[-1] if builder.open else None
        inside = f" inside <{last.name}> opened on line {last.line}" if last else ""
        what = expat.ErrorString(error.code)
        raise FormatError(f"{path}:{error.lineno}: not well-formed XML{inside}: {what}") from None
    except (LookupError, ValueError) as error:  # an encoding Python does not know
        raise FormatError(f"{path}:1: the encoding cannot be read: {error}") from None
    if builder.root is None:
        raise FormatError(f"{path}:1: no element is found: <algo> was expected")
    return builder.root


def json_of(data: bytes, path: Path) -> Any:
    """Return the value of a JSON text. Raises FormatError with file and line."""
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        said = " ".join(str(error).split())[:80]
        raise FormatError(f"{path}: not JSON: {type(error).__name__}: {said}") from None
