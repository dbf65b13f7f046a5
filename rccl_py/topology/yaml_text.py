"""The text of a machine file: found readable, read as YAML, checked against the schema.

Owns the limits on what is read and the sentences that say where a file is wrong (file, line, key).
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ..errors import FormatError
from .machine_spec import SPECS

__all__ = ["checked", "located", "parsed", "text_of"]

_LIMIT = 8 << 20  # bytes; the largest real files of any format have some hundred kilobytes
_YAML_LIMIT = 1 << 18  # characters; a machine's YAML has some thousand, and YAML is slow to read


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys and aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_mark()
            raise yaml.MarkedYAMLError(None, None, "aliases are not used here", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        if not isinstance(node, yaml.MappingNode):
            raise yaml.MarkedYAMLError(None, None, "a mapping was expected", node.start_mark)
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "keys must be texts", key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    None, None, f"key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def text_of(path: Path) -> str:
    """Return the text of a file. Raises FormatError for a folder, a device, a pipe, or too much."""
    try:
        if path.is_dir():
            raise FormatError(f"{path}: is a folder: a YAML or XML file was expected")
        if path.is_char_device() or path.is_block_device():
            raise FormatError(f"{path}: is a device: a YAML or XML file was expected")
        if path.is_fifo() and not str(path.absolute()).startswith(("/dev/fd/", "/proc/")):
            raise FormatError(f"{path}: is a named pipe: a YAML or XML file was expected")
        if path.stat().st_size > _LIMIT:
            raise FormatError(
                f"{path}: {path.stat().st_size} bytes is no machine description (limit {_LIMIT})"
            )
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a text: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None


def parsed(path: Path) -> dict[str, Any]:
    """Return the mapping a YAML file holds. Raises FormatError with file and line."""
    text = text_of(path)
    if len(text) > _YAML_LIMIT:
        raise FormatError(
            f"{path}: {len(text)} characters is no machine description (limit {_YAML_LIMIT})"
        )
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise FormatError(f"{path}:{line}: {error.problem or error.context}") from None
    except Exception as error:  # a tag such as !!bool on what is none raises anything
        said = " ".join(str(error).split())[:200]
        raise FormatError(f"{path}: not YAML: {type(error).__name__}: {said}") from None
    if not isinstance(data, dict):
        raise FormatError(
            f"{path}: a mapping of keys such as name, gpus, device was expected, "
            f"found {type(data).__name__}"
        )
    _require_printable(data, "", path)
    return data


def _require_printable(value: Any, key: str, path: Path) -> None:
    """Refuse texts that a terminal would act on; they are shown to people as they are."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _require_printable(name, key, path)
            _require_printable(inner, f"{key}.{name}".lstrip("."), path)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _require_printable(inner, f"{key}[{number}]", path)
    elif isinstance(value, str) and not value.isprintable():
        raise FormatError(located(path, key, "one line of printable text was expected"))


def checked(data: dict[str, Any], kind: Any, path: Path) -> Any:
    """Return `data` as the schema `kind`. Raises FormatError with file, line and key."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        # msgspec says "Expected `int`, got `str` - at `$.gpus`": put the key first.
        what, _, at = str(error).partition(" - at ")
        key = at.strip("`").removeprefix("$").removeprefix(".").removesuffix("[...]")
        raise FormatError(located(path, key, _plain(what, key, kind))) from None


_QUANTITIES = (
    "cap",
    "local_rate",
    "global_rate",
    "hop",
    "bandwidth",
    "latency",
    "launch",
    "memory",
    "message",
)


def _plain(what: str, key: str, kind: Any) -> str:
    """Return msgspec's sentence with what a person would do about it."""
    if "Expected `str`" in what and re.split(r"[.\[]", key)[-1] in _QUANTITIES:
        return "a quantity with its unit was expected, such as 0.2us or 50GB/s"
    if what.endswith("\\udfff]+$'"):
        return "one line of printable text was expected"
    unknown = re.search(r"unknown field `(.*)`", what)
    if unknown:
        fields = [f for spec in SPECS for f in spec.__struct_fields__]
        close = difflib.get_close_matches(unknown[1], fields, n=2, cutoff=0.6)
        return what + (f": did you mean {' or '.join(dict.fromkeys(close))}?" if close else "")
    return what


def located(path: Path, key: str, what: str) -> str:
    """Return the message behind file, line (where it can be told) and key.

    The line is found by walking down the key: `a.b[2].c` is the first line with `c:` after the
    first with `b:` after the first with `a:`. What a missing or unknown key lacks is not walked.
    """
    unknown = re.search(r"unknown field `(.*?)`", what)
    names = [re.sub(r"\[.*?\]", "", name) for name in key.split(".") if name]
    names += [unknown[1]] if unknown else []
    lines = [text.partition("#")[0] for text in text_of(path).splitlines()]
    at = found = 0
    for name in names:
        pattern = re.compile(rf"(?:^|[\s{{,]){re.escape(name)}\s*:")
        hits = [k for k in range(at, len(lines)) if pattern.search(lines[k])]
        if not hits:
            break
        at, found = hits[0], hits[0] + 1
    else:
        where = f"{path}:{found}" if found else f"{path}"
        return f"{where}: {key + ': ' if key else ''}{what}"
    return f"{path}: {key + ': ' if key else ''}{what}"
