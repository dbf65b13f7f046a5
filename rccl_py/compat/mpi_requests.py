"""Requests: messages that are not waited for yet, and what is known of those that came.

Owns Request and Status, and the waits for several requests. Knows the post (mpi_post), no buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .mpi_errors import MpiError
from .mpi_post import ANY_SOURCE, ANY_TAG, PROC_NULL, Arrived, Leaving, Post, Wanted
from .mpi_types import DATATYPES, datatype_of

__all__ = ["UNDEFINED", "Request", "Status"]

UNDEFINED = -32766


class Status:
    """What is known of a message that was received, or that waits to be."""

    def __init__(self) -> None:
        self.source, self.tag, self.error = ANY_SOURCE, ANY_TAG, 0
        self.count = 0
        self.cancelled = False

    def note(self, message: Arrived | None) -> None:
        """Take over what a message says; None: of one from PROC_NULL."""
        self.source, self.tag, self.count = (
            (PROC_NULL, ANY_TAG, 0) if message is None
            else (message.source, message.tag, message.data.size)
        )  # fmt: skip

    def Get_source(self) -> int:
        """Return the sender's rank."""
        return self.source

    def Get_tag(self) -> int:
        """Return the tag."""
        return self.tag

    def Get_error(self) -> int:
        """Return 0, success."""
        return self.error

    def Get_count(self, datatype: object = DATATYPES["BYTE"]) -> int:
        """Return how many elements of a datatype came, UNDEFINED for no whole number."""
        size = datatype_of(datatype).size
        return 0 if not self.count else UNDEFINED if self.count % size else self.count // size

    def Is_cancelled(self) -> bool:
        """Return whether the message was cancelled."""
        return self.cancelled


class Request:
    """A message under way. Request() is REQUEST_NULL, and so is one that was waited for."""

    def __init__(self, post: Post | None = None, what: str = "") -> None:
        self._post, self._what = post, what
        self._wanted: Wanted | None = None
        self._leaving: Leaving | None = None
        self._error: MpiError | None = None
        self._result: Any = None
        self._arrived = self._cancelled = False
        self._status = Status()

    def __bool__(self) -> bool:
        return self._post is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and (self is other or not (self or other))

    def __hash__(self) -> int:
        return id(self)

    def _begin(self, wanted: Wanted | None, leaving: Leaving | None) -> Request:
        self._wanted, self._leaving = wanted, leaving
        if wanted is not None and self._post is not None:
            self._post.want(wanted)
        return self

    def _done(self) -> bool:
        if self._leaving is not None:
            return self._leaving.done
        return self._wanted is None or self._arrived or self._cancelled

    def _finish(self, status: Status | None) -> Any:
        """Become REQUEST_NULL; return the object received, if it is one of an object."""
        if status is not None:
            vars(status).update(vars(self._status))
        error, result, self._post = self._error, self._result, None
        if error is not None:
            raise error
        return result

    # ---- one ------------------------------------------------------------------------------------

    def wait(self, status: Status | None = None) -> Any:
        """Wait for it; return the object received, None for others."""
        if self._post is None:
            return None
        self._post.wait(self._done, self._what)
        return self._finish(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Return whether it is over, and the object received."""
        if self._post is not None and not self._done():
            self._post.progress()
        if self._post is not None and not self._done():
            return False, None
        return True, None if self._post is None else self._finish(status)

    def Wait(self, status: Status | None = None) -> bool:
        """Wait for it; return True."""
        self.wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Return whether it is over."""
        return self.test(status)[0]

    def Cancel(self) -> None:
        """Take a receive back that no message has matched; a message that has left stays."""
        if self._post is not None and self._wanted is not None:
            self._cancelled = self._post.forget(self._wanted)
            self._status.cancelled = self._cancelled

    def Free(self) -> None:
        """Become REQUEST_NULL; what is under way goes on."""
        self._post = None

    cancel = Cancel

    def get_status(self, status: Status | None = None) -> bool:
        """Return whether it is over, and leave it as it is."""
        if self._post is not None and not self._done():
            self._post.progress()
        if self._post is not None and status is not None:
            vars(status).update(vars(self._status))
        return self._post is None or self._done()

    Get_status = get_status

    # ---- several: by index, small letters with the objects received -----------------------------

    @staticmethod
    def _over(requests: Sequence[Request]) -> list[int]:
        """Return which are over and not taken note of yet, after moving messages on."""
        for post in {id(r._post): r._post for r in requests if r}.values():
            if post is not None:
                post.progress()
        return [k for k, request in enumerate(requests) if request and request._done()]

    @classmethod
    def _await_some(cls, requests: Sequence[Request], what: str) -> list[int]:
        """Return which are over, at least one, or none where all are REQUEST_NULL."""
        post = next((r._post for r in requests if r._post is not None), None)
        found: list[int] = []

        def ready() -> bool:
            found[:] = cls._over(requests)
            return bool(found)

        if post is not None:
            post.wait(ready, what)
        return found

    @classmethod
    def _finished(
        cls, requests: Sequence[Request], which: list[int], statuses: list[Status] | None
    ) -> list[Any]:
        found = [Status() for _ in which]
        results = [requests[k]._finish(status) for k, status in zip(which, found)]
        if statuses is not None:
            statuses[:] = found
        return results

    @classmethod
    def waitall(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> list[Any]:
        """Wait for all; return the objects received, None for others."""
        found = [Status() for _ in requests]
        results = [request.wait(status) for request, status in zip(requests, found)]
        if statuses is not None:
            statuses[:] = found
        return results

    @classmethod
    def testall(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Return whether all are over, and the objects received if they are."""
        if len(cls._over(requests)) < sum(map(bool, requests)):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Wait for one of them; return its index, UNDEFINED if there is none, and its object."""
        found = cls._await_some(requests, "Waitany")
        return (found[0], requests[found[0]]._finish(status)) if found else (UNDEFINED, None)

    @classmethod
    def testany(
        cls, requests: Sequence[Request], status: Status | None = None
    ) -> tuple[int, bool, Any]:
        """Return (index, True, object) of one that is over, (UNDEFINED, is there none, None)."""
        found = cls._over(requests)
        if not found:
            return UNDEFINED, not any(requests), None
        return found[0], True, requests[found[0]]._finish(status)

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait for one or more; return their indices and objects, None where there is none."""
        if not any(requests):
            return None, None
        found = cls._await_some(requests, "Waitsome")
        return found, cls._finished(requests, found, statuses)

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Return the indices and objects of those that are over, None where there is none."""
        if not any(requests):
            return None, None
        found = cls._over(requests)
        return found, cls._finished(requests, found, statuses)

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Wait for all; return True."""
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Return whether all are over."""
        return cls.testall(requests, statuses)[0]

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait for one of them; return its index."""
        return cls.waitany(requests, status)[0]

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return (index, True) of one that is over."""
        return cls.testany(requests, status)[:2]

    @classmethod
    def Waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> list[int] | None:
        """Wait for one or more; return their indices."""
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def Testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> list[int] | None:
        """Return the indices of those that are over."""
        return cls.testsome(requests, statuses)[0]
