"""What hofunc reads of inductor to keep small buffers of a kernel on its stack.

Inductor makes one kernel of many loops, and a tensor of all that goes from one loop to another, though nobody else
reads it. Derivatives of networks of ten numbers a row had 16 and 24 of them, at a third of a microsecond each, and
memory that another function might see is not what a C++ compiler can do without. With them on the stack of the kernel,
what inductor made took 8.3 and 13.6 microseconds a call, 12.6 and 19.7 without. It imports the compiler, which takes
seconds, and so is imported where something is compiled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch._inductor import ir, lowering  # noqa: F401 - the next one would import the latter in a circle
from torch._inductor.codegen.cpp import KernelGroup
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP
from torch._inductor.virtualized import V

SMALL, ALL = 1 << 14, 1 << 16  # bytes of a buffer, and of all that a kernel has on its stack

_FIRST = "std::atomic<int> inductor_cpu_integer_div_error{0};"  # line of the body of every kernel


@contextmanager
def buffers_inside() -> Iterator[None]:
    """Let what is compiled have small buffers, that one kernel alone writes and reads, on the stack of that."""
    write = KernelGroup.codegen_group

    def with_buffers(group: Any, name: str | None = None) -> str:
        inside = _inside(group)
        lines = [_taken(group, buffer) for buffer in inside]
        source = write(group, name)
        V.graph.removed_buffers.update(buffer.get_name() for buffer in inside)  # only now: what is stored is written
        return source.replace(_FIRST, "\n    ".join([*lines, _FIRST]), 1)

    with patch.object(KernelGroup, "codegen_group", with_buffers):
        yield


def _inside(group: Any) -> list[Any]:
    """Return the buffers of a kernel that are to be on its stack."""
    nodes = {node.get_name() for node in group.scheduled_nodes}
    known, written = V.graph.scheduler.name_to_buf, {*V.graph.scheduler.mutation_real_name.values()}
    found, taken = [], 0
    for name, inner in group.args.output_buffers.items():
        buffer = known.get(name)
        if not isinstance(inner, str) or buffer is None or name in group.args.inplace_buffers or name in written:
            continue
        if not _is_plain(buffer.node) or any(user.node.get_name() not in nodes for user in buffer.users):
            continue
        size = _bytes(buffer.node)
        if size <= SMALL and taken + size <= ALL:
            taken += size
            found.append(buffer.node)
    return found


def _is_plain(node: Any) -> bool:
    """Tell whether a buffer is memory of its own, of a known size."""
    return (
        isinstance(node, ir.ComputedBuffer)
        and type(node.layout) is ir.FixedLayout
        and not node.get_inputs_that_alias_output()
        and not node.get_mutation_names()
        and all(map(_is_number, (*node.get_size(), *node.get_stride())))
    )


def _is_number(size: Any) -> bool:
    """Tell whether a size is a number, and no symbol."""
    return str(size).isdigit()


def _bytes(node: Any) -> int:
    return int(node.get_layout().storage_size()) * int(node.get_dtype().itemsize)


def _taken(group: Any, node: Any) -> str:
    """Take a buffer from the arguments of a kernel; returns the line that defines it."""
    inner = group.args.output_buffers.pop(node.get_name())
    count = max(1, int(node.get_layout().storage_size()))
    return f"alignas(64) {DTYPE_TO_CPP[node.get_dtype()]} {inner}[{count}];"
