"""Schedules of other tools, in and out: MSCCL XML and MSCCL++ JSON."""

from __future__ import annotations

from pathlib import Path

from ..programs import Custom
from .msccl_write import msccl_xml
from .msccl_xml import read_msccl, read_msccl_text
from .mscclpp_json import read_mscclpp, read_mscclpp_text
from .text import text_of

__all__ = ["msccl_xml", "read_msccl", "read_mscclpp", "read_schedule"]


def read_schedule(path: str | Path) -> Custom:
    """Return the schedule of a file: MSCCL XML if it opens with "<", MSCCL++ JSON otherwise.

    Raises FormatError where it is neither, malformed, or does not do its collective.
    """
    file = Path(path)
    data = text_of(file)
    opening = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    return read_msccl_text(data, file) if opening == b"<" else read_mscclpp_text(data, file)
