"""Messages of buffers and of objects, as requests.

Owns what a send reads and how a receive fills a buffer or makes an object. Knows the post
(mpi_post), not how a message crosses.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from .mpi_blocks import Block
from .mpi_buffers import read_block
from .mpi_errors import ERR_TRUNCATE, MpiError
from .mpi_post import ANY_SOURCE, PROC_NULL, Arrived, Leaving, Post, Wanted
from .mpi_requests import Request

__all__ = ["receive", "receive_object", "send", "send_object"]


def _started(post: Post, what: str, wanted: Wanted | None, leaving: Leaving | None) -> Request:
    return Request(post, what)._begin(wanted, leaving)


def send(
    post: Post, buf: object, dest: int, tag: int, what: str, *, synchronous: bool = False
) -> Request:
    """Begin to send a buffer."""
    if dest == PROC_NULL:
        return _started(post, what, None, None)
    data = read_block(buf, f"{what}: buf", writes=False).read()
    return _sent(post, data, dest, tag, what, synchronous)


def send_object(
    post: Post, obj: Any, dest: int, tag: int, what: str, *, synchronous: bool = False
) -> Request:
    """Begin to send an object, pickled."""
    if dest == PROC_NULL:
        return _started(post, what, None, None)
    data = np.frombuffer(pickle.dumps(obj), np.uint8)
    return _sent(post, data, dest, tag, what, synchronous)


def _sent(post: Post, data: Any, dest: int, tag: int, what: str, synchronous: bool) -> Request:
    to = post.checked(dest, what)
    words = f"{what} to rank {to} with tag {tag}"
    return _started(post, words, None, post.send(to, tag, data, synchronous=synchronous))


def _wanted(
    post: Post, source: int, tag: int, what: str,
    deliver: Callable[[Request, Arrived], None],
) -> Request:  # fmt: skip
    if source == PROC_NULL:
        made = Request(post, what)
        made._status.note(None)
        return made
    of = source if source == ANY_SOURCE else post.checked(source, what)
    told = "any rank" if of == ANY_SOURCE else f"rank {of}"
    made = Request(post, f"{what} from {told} with {'any tag' if tag < 0 else f'tag {tag}'}")

    def arrived(message: Arrived) -> None:
        made._status.note(message)
        made._arrived = True
        deliver(made, message)

    return made._begin(Wanted(of, tag, arrived), None)


def receive(post: Post, buf: object, source: int, tag: int, what: str) -> Request:
    """Begin to receive into a buffer; a shorter message fills its start."""
    block: Block | None = None
    if source != PROC_NULL:
        block = read_block(buf, f"{what}: buf", writes=True)

    def deliver(request: Request, message: Arrived) -> None:
        assert block is not None
        if message.data.size > block.nbytes:
            request._error = MpiError(
                f"{what}: the message of rank {message.source} with tag {message.tag} has "
                f"{message.data.size} bytes, the buffer {block.nbytes}", ERR_TRUNCATE
            )  # fmt: skip
        elif block.packed:
            block.settle(message.data)
        else:
            block.read()[: message.data.size] = message.data

    return _wanted(post, source, tag, what, deliver)


def receive_object(post: Post, source: int, tag: int, what: str) -> Request:
    """Begin to receive an object."""

    def deliver(request: Request, message: Arrived) -> None:
        request._result = pickle.loads(message.data.tobytes()) if message.data.size else None

    return _wanted(post, source, tag, what, deliver)
