"""Files of a command: whether they can be written, asked before the run, and whole or not at all.

Owns the temporary file and its renaming. Knows nothing of what is written.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import RcclSystemError

__all__ = ["check_writable", "write_whole"]


def _temporary(target: Path) -> tuple[int, str]:
    return tempfile.mkstemp(prefix=f".{target.name[:80]}.", suffix=".part", dir=target.parent)


def _special(target: Path) -> bool:
    return target.exists() and not target.is_file()


def _failure(path: str, error: OSError) -> RcclSystemError:
    reason = error.strerror or type(error).__name__
    return RcclSystemError(f"{path!r} cannot be written: {reason}: name a file in a folder that "
                           "exists and may be written to")  # fmt: skip


def check_writable(path: str) -> None:
    """Raise RcclSystemError when `path` cannot be written; leaves nothing behind."""
    try:
        target = Path(path).resolve()
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(None, "it may not be changed")
        if not _special(target):
            handle, name = _temporary(target)
            os.close(handle)
            os.unlink(name)
    except OSError as error:
        raise _failure(path, error) from None
    except (ValueError, RuntimeError) as error:  # a NUL in the name, links in a circle
        raise RcclSystemError(f"{path!r} cannot be written: {error}") from None


def write_whole(path: str, content: str | bytes) -> None:
    """Put `content` in the place of `path` at once: whoever reads sees the old file or all of it.

    A text is written as UTF-8.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        target = Path(path).resolve()
        if _special(target):  # a pipe or a device is written to, never replaced
            target.write_bytes(data)
            return
        handle, name = _temporary(target)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _failure(path, error) from None


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
