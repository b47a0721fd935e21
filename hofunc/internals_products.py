"""What hofunc reads of inductor to add a kernel of its own: products of matrices in the C++ that inductor writes.

It imports the compiler, which takes seconds, and so is imported where something is compiled, and not before.

NOTE [products]: a panel of columns of the right matrix, as wide as fits into a few registers, is multiplied by a few
rows of the left one at a time, so that every number that is read is used for as many products as registers allow, and
none of the sums goes through memory. Sums are over SUMMED entries at a time. Where the panel does not lie side by side
in memory it is copied so that it does. All sizes are known as the kernel is compiled.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._inductor import ir
from torch._inductor.lowering import register_lowering  # isort: skip # before the next, which imports it in a circle
from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP
from torch._inductor.cpu_vec_isa import invalid_vec_isa, pick_vec_isa
from torch._inductor.utils import Placeholder, parallel_num_threads

SUMMED = 256  # entries of a sum that is kept in registers, as BLAS does
MANY_REGISTERS = 512  # bits of vectors of processors with 32 of them, as of AVX512; others have 16
ROWS_OF_A_THREAD = 1 << 18  # multiplications that are worth a thread

_ROWS = {True: {1: 16, 2: 12, 3: 8, 4: 6}, False: {1: 10, 2: 6}}  # by registers, and the vectors of a row

_SOURCE = r"""
#include <torch/csrc/inductor/cpp_prefix.h>

namespace {
using Number = @number@;
using Vector = at::vec::Vectorized<Number>;
constexpr int64_t WIDTH = Vector::size();

// The product of R rows with a panel of V vectors, of which the last has so many entries, added to what it starts from.
template <int R, int V, int LAST>
inline __attribute__((always_inline)) void tile(
    const Number* left, int64_t left_row, int64_t left_step, const Number* right, int64_t right_step,
    const Number* start, int64_t start_row, Number* result, int64_t result_row, int64_t summed) {
    Vector sums[R][V];
    #pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        #pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            if (start == nullptr) sums[r][v] = Vector(0);
            else if (v < V - 1 || LAST == WIDTH) sums[r][v] = Vector::loadu(start + r * start_row + v * WIDTH);
            else sums[r][v] = Vector::loadu(start + r * start_row + v * WIDTH, LAST);
        }
    }
    for (int64_t k = 0; k < summed; ++k) {
        Vector row[V];
        #pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            if (v < V - 1 || LAST == WIDTH) row[v] = Vector::loadu(right + k * right_step + v * WIDTH);
            else row[v] = Vector::loadu(right + k * right_step + v * WIDTH, LAST);
        }
        #pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vector factor(left[r * left_row + k * left_step]);
            #pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sums[r][v] = at::vec::fmadd(factor, row[v], sums[r][v]);
        }
    }
    #pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        #pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            if (v < V - 1 || LAST == WIDTH) sums[r][v].store(result + r * result_row + v * WIDTH);
            else sums[r][v].store(result + r * result_row + v * WIDTH, LAST);
        }
    }
}

// The product of some rows with a panel.
template <int V, int LAST>
inline void panel(
    const Number* left, int64_t left_row, int64_t left_step, const Number* right, int64_t right_step,
    const Number* start, int64_t start_row, Number* result, int64_t result_row, int64_t rows) {
    constexpr int64_t COLUMNS = (V - 1) * WIDTH + LAST;
    constexpr bool IS_COPIED = @copied@;
    constexpr int R = V == 1 ? @rows1@ : V == 2 ? @rows2@ : V == 3 ? @rows3@ : @rows4@;
    constexpr int REST = @rows@ % R;
    alignas(64) Number copy[IS_COPIED ? @summed@ * V * WIDTH : 1];
    for (int64_t first = 0; first < @inner@; first += @summed@) {
        const int64_t summed = std::min<int64_t>(@summed@, @inner@ - first);
        const Number* part = right + first * right_step;
        if constexpr (IS_COPIED) {
            for (int64_t k = 0; k < summed; ++k)
                for (int64_t n = 0; n < COLUMNS; ++n)
                    copy[k * V * WIDTH + n] = part[k * right_step + n * @right_column@];
        }
        const Number* from = IS_COPIED ? copy : part;
        const int64_t step = IS_COPIED ? V * WIDTH : right_step;
        const Number* begin = first ? result : start;
        const int64_t begin_row = first ? result_row : start_row;
        int64_t m = 0;
        for (; m + R <= rows; m += R)
            tile<R, V, LAST>(left + m * left_row + first * left_step, left_row, left_step, from, step,
                begin ? begin + m * begin_row : nullptr, begin_row, result + m * result_row, result_row, summed);
        if constexpr (REST > 0) {
            if (m < rows)
                tile<REST, V, LAST>(left + m * left_row + first * left_step, left_row, left_step, from, step,
                    begin ? begin + m * begin_row : nullptr, begin_row, result + m * result_row, result_row, summed);
        }
    }
}
}  // namespace

extern "C" @definition@
{
    for (int64_t item = 0; item < @items@; ++item) {
        const Number* left = @left@ + item * @left_item@;
        const Number* right = @right@ + item * @right_item@;
        Number* result = @result@ + item * @result_item@;
        const Number* start = @start@;
        @panels@
    }
}
"""


class _Sizes(NamedTuple):
    """The sizes of a product: of how many, of rows, of sums and of columns."""

    items: int
    rows: int
    inner: int
    columns: int


def is_vectorised() -> bool:
    """Tell whether inductor writes vectors for this processor."""
    return pick_vec_isa() is not invalid_vec_isa


def lower_by(op: Any) -> None:
    """Tell inductor that an op of two matrices, or as many of each, and of what is added, is such a product."""
    register_lowering(op, type_promotion_kind=None)(_lowered)


def _lowered(left: Any, right: Any, added: Any = None) -> Any:
    inputs = [_realised(operand) for operand in (left, right, added) if operand is not None]
    *batch, rows, _ = left.get_size()
    size = [*batch, rows, right.get_size()[-1]]
    layout = ir.FixedLayout(left.get_device(), left.get_dtype(), size, ir.FlexibleLayout.contiguous_strides(size))
    buffer = ir.CppTemplateBuffer(
        layout=layout, inputs=inputs, make_kernel_render=partial(_rendered, inputs), template=None, choice=None
    )
    buffer.allow_epilogue_fusion = False
    return ir.TensorBox.create(buffer)


def _realised(operand: Any) -> Any:
    """Return an operand as it lies in memory."""
    found = ir.ExternKernel.realize_input(operand)
    found.freeze_layout()
    return found


def _rendered(inputs: Sequence[Any], buffer: Any, **_: Any) -> tuple[Any, Any]:
    """Return the kernel of a product, and what writes its source."""
    kernel = CppTemplateKernel(str(Placeholder.KERNEL_NAME), parallel_num_threads())
    return kernel, lambda: kernel.render(_Template(inputs, buffer))


class _Template:
    """What writes the source of a product."""

    def __init__(self, inputs: Sequence[Any], buffer: Any):
        self._inputs, self._buffer = inputs, buffer

    def render(self, kernel: Any) -> str:
        """Return the source, with what the kernel fills in at the end."""
        left, right, *added = self._inputs
        names = {"left_": left, "right_": right} | ({"added_": added[0]} if added else {})
        definition = kernel.def_kernel(inputs=names, outputs={"result_": self._buffer})
        *batch, rows, inner = map(int, left.get_size())
        columns = int(right.get_size()[-1])
        vectors = pick_vec_isa().nelements(left.get_dtype())
        many = pick_vec_isa().bit_width() >= MANY_REGISTERS
        rows_of = _ROWS[many]
        widest = max(rows_of)
        steps = {name: [*map(int, value.get_stride())] for name, value in names.items()}

        def at(value: Any) -> str:
            return f"&{kernel.index(value, [0] * len(value.get_size()))}"

        right_step, right_column = steps["right_"][-2:]
        is_copied = right_column != 1
        start = "nullptr"
        start_row = 0
        if added:
            start_row = steps["added_"][-2] if len(steps["added_"]) > 1 else 0
            item = steps["added_"][0] if len(steps["added_"]) > 2 else 0
            start = f"{at(added[0])} + item * {item}"
        panels = []
        for first, count, last in _panels(columns, vectors, widest):
            call = (
                f"panel<{count}, {last}>(left, {steps['left_'][-2]}, {steps['left_'][-1]}, "
                f"right + {first * right_column}, {right_step}, start ? start + {first} : nullptr, {start_row}, "
                f"result + {first}, {columns}, {rows});"
            )
            panels.append(call)
        known = {
            "number": DTYPE_TO_CPP[left.get_dtype()],
            "definition": definition,
            "copied": "true" if is_copied else "false",
            "rows": rows,
            "inner": inner,
            "summed": min(SUMMED, inner),
            "right_column": right_column,
            "items": batch[0] if batch else 1,
            "left": at(left),
            "right": at(right),
            "result": at(self._buffer),
            "left_item": steps["left_"][0] if batch else 0,
            "right_item": steps["right_"][0] if batch else 0,
            "result_item": rows * columns,
            "start": start,
            "panels": "\n        ".join(panels),
        } | {f"rows{count}": rows_of.get(count, 1) for count in (1, 2, 3, 4)}
        source = _SOURCE
        for name, value in known.items():
            source = source.replace(f"@{name}@", str(value))
        return source


def _panels(columns: int, width: int, widest: int) -> list[tuple[int, int, int]]:
    """Return the first column of every panel, its vectors, and the entries of the last of these."""
    vectors = -(-columns // width)
    count = -(-vectors // widest)
    each = -(-vectors // count)
    found = []
    for first in range(0, vectors, each):
        here = min(each, vectors - first)
        last = min(width, columns - (first + here - 1) * width)
        found.append((first * width, here, last))
    return found
