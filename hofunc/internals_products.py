"""What hofunc reads of inductor to add a kernel of its own: products of matrices in the C++ that inductor writes.

It imports the compiler, which takes seconds, and so is imported where something is compiled, and not before.

NOTE [products]: a panel of columns of the right matrix, as wide as fits into a few registers, is multiplied by a few
rows of the left one at a time, so that every number that is read is used for as many products as registers allow, and
no sum goes through memory. Sums are of SUMMED products at a time, and then added, as BLAS does for exactness. Where a
panel does not lie side by side in memory it is copied so that it does. All sizes are known as a kernel is compiled, so
that its loops over registers are unrolled. Where the left matrix is a product of two tensors entry by entry, the few
rows are multiplied as they are taken, and it is nowhere in memory.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import lcm
from typing import Any, NamedTuple

from torch._inductor import config, ir, lowering  # the next one would import the latter in a circle
from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP
from torch._inductor.cpu_vec_isa import invalid_vec_isa, pick_vec_isa
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.utils import Placeholder, parallel_num_threads
from torch.fx import Graph

SUMMED = 128  # products in a sum that is kept in a register
MANY_BITS = 512  # of vectors of a processor with 32 of them, as of AVX512; others are taken to have 16
OF_A_THREAD = 1 << 21  # multiplications that are worth a thread; at 1 << 18 small networks took up to 1.5 times as long

# The rows that are multiplied by a panel at a time, by the vectors of a row of the panel: with many registers, and few.
_MANY = {1: 16, 2: 12, 3: 8, 4: 6}
_FEW = {1: 10, 2: 6}

_SOURCE = r"""
#include <torch/csrc/inductor/cpp_prefix.h>

namespace parts_of_{name} {{
using Number = {number};
using Vector = at::vec::Vectorized<Number>;
constexpr int64_t WIDTH = Vector::size(), ROWS = {rows}, INNER = {inner}, SUMMED = {summed};
constexpr int64_t LEFT_ROW = {left_row}, LEFT_STEP = {left_step};
constexpr int64_t RIGHT_STEP = {right_step}, RIGHT_COLUMN = {right_column}, RESULT_ROW = {columns};
constexpr int64_t SCALE_ROW = {scale_row}, SCALE_STEP = {scale_step};
constexpr bool IS_SCALED = {is_scaled};

// A vector of numbers side by side, or its first few.
template <int COUNT>
inline Vector load(const Number* numbers) {{
    if constexpr (COUNT == WIDTH) return Vector::loadu(numbers);
    else return Vector::loadu(numbers, COUNT);
}}

template <int COUNT>
inline void store(const Vector& vector, Number* numbers) {{
    if constexpr (COUNT == WIDTH) vector.store(numbers);
    else vector.store(numbers, COUNT);
}}

// R rows times a panel of V vectors, of which the last is loaded and stored in part, and what is added to the result.
template <int R, int V, int LOADED, int STORED, int64_t STEP>
inline __attribute__((always_inline)) void tile(
    const Number* left, const Number* scale, const Number* right, const Number* added, int64_t added_row,
    Number* result, int64_t summed) {{
    constexpr int64_t ROW = IS_SCALED ? SUMMED : LEFT_ROW, LEFT = IS_SCALED ? 1 : LEFT_STEP;
    alignas(64) Number scaled[IS_SCALED ? R * SUMMED : 1];
    if constexpr (IS_SCALED) {{
        for (int r = 0; r < R; ++r) {{
            const Number *one = left + r * LEFT_ROW, *other = scale + r * SCALE_ROW;
            int64_t k = 0;
            if constexpr (LEFT_STEP == 1 && SCALE_STEP == 1) {{
                for (; k + WIDTH <= summed; k += WIDTH)
                    (Vector::loadu(one + k) * Vector::loadu(other + k)).store(scaled + r * SUMMED + k);
            }}
            for (; k < summed; ++k) scaled[r * SUMMED + k] = one[k * LEFT_STEP] * other[k * SCALE_STEP];
        }}
        left = scaled;
    }}
    Vector sums[R][V];
    #pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {{
        #pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[r][v] = Vector(0);
    }}
    for (int64_t k = 0; k < summed; ++k) {{
        Vector row[V];
        #pragma GCC unroll 4
        for (int v = 0; v < V - 1; ++v) row[v] = Vector::loadu(right + k * STEP + v * WIDTH);
        row[V - 1] = load<LOADED>(right + k * STEP + (V - 1) * WIDTH);
        #pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {{
            const Vector factor(left[r * ROW + k * LEFT]);
            #pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sums[r][v] = at::vec::fmadd(factor, row[v], sums[r][v]);
        }}
    }}
    #pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {{
        if (added != nullptr) {{
            #pragma GCC unroll 4
            for (int v = 0; v < V - 1; ++v) sums[r][v] = sums[r][v] + Vector::loadu(added + r * added_row + v * WIDTH);
            sums[r][V - 1] = sums[r][V - 1] + load<STORED>(added + r * added_row + (V - 1) * WIDTH);
        }}
        #pragma GCC unroll 4
        for (int v = 0; v < V - 1; ++v) sums[r][v].store(result + r * RESULT_ROW + v * WIDTH);
        store<STORED>(sums[r][V - 1], result + r * RESULT_ROW + (V - 1) * WIDTH);
    }}
}}

// Some rows times a panel of V vectors, the last of so many numbers, R rows at a time.
template <int R, int V, int LAST, bool IS_COPIED>
inline void panel(
    const Number* left, const Number* scale, const Number* right, const Number* added, int64_t added_row,
    Number* result, int64_t rows) {{
    constexpr int64_t COLUMNS = (V - 1) * WIDTH + LAST, STEP = IS_COPIED ? V * WIDTH : RIGHT_STEP;
    constexpr int LOADED = IS_COPIED ? WIDTH : LAST;
    alignas(64) Number copy[IS_COPIED ? SUMMED * V * WIDTH : 1];
    if constexpr (IS_COPIED && LAST != WIDTH) std::fill(std::begin(copy), std::end(copy), Number(0));
    for (int64_t first = 0; first < INNER; first += SUMMED) {{
        const int64_t summed = std::min<int64_t>(SUMMED, INNER - first);
        const Number* from = right + first * RIGHT_STEP;
        if constexpr (IS_COPIED) {{
            if constexpr (RIGHT_STEP == 1) {{
                at::vec::transpose_mxn<Number>(from, RIGHT_COLUMN, copy, STEP, COLUMNS, summed);
            }} else {{
                for (int64_t k = 0; k < summed; ++k)
                    for (int64_t n = 0; n < COLUMNS; ++n) copy[k * STEP + n] = from[k * RIGHT_STEP + n * RIGHT_COLUMN];
            }}
            from = copy;
        }}
        const Number* base = first ? result : added;
        const int64_t base_row = first ? RESULT_ROW : added_row;
        int64_t m = 0;
        for (; m + R <= rows; m += R)
            tile<R, V, LOADED, LAST, STEP>(
                left + m * LEFT_ROW + first * LEFT_STEP, scale + m * SCALE_ROW + first * SCALE_STEP, from,
                base ? base + m * base_row : nullptr, base_row, result + m * RESULT_ROW, summed);
        if constexpr (ROWS % R > 0) {{
            if (m < rows)
                tile<ROWS % R, V, LOADED, LAST, STEP>(
                    left + m * LEFT_ROW + first * LEFT_STEP, scale + m * SCALE_ROW + first * SCALE_STEP, from,
                    base ? base + m * base_row : nullptr, base_row, result + m * RESULT_ROW, summed);
        }}
    }}
}}
}}  // namespace parts_of_{name}

extern "C" {definition}
{{
    using namespace parts_of_{name};
    {parallel}
    for (int64_t part = 0; part < {items} * {parts}; ++part) {{
        const int64_t item = part / {parts}, first = part % {parts} * {part_rows};
        const int64_t rows = std::min<int64_t>({part_rows}, ROWS - first);
        const Number* left = {left} + item * {left_item} + first * LEFT_ROW;
        const Number* scale = {scale} + item * {scale_item} + first * SCALE_ROW;
        const Number* right = {right} + item * {right_item};
        const Number* added = {added};
        Number* result = {result} + (item * ROWS + first) * RESULT_ROW;
        {panels}
    }}
}}
"""


class _Pass(CustomGraphPass):
    """What changes a graph, and what tells that what was compiled before may be taken again."""

    def __init__(self, change: Callable[[Graph], None], sources: Sequence[str]):
        self._change, self._sources = change, sources

    def __call__(self, graph: Graph) -> None:
        self._change(graph)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__, *self._sources), str(parallel_num_threads()))


def with_products(op: Any, scaled: Any, change: Callable[[Graph], None], sources: Sequence[str]) -> dict[str, Any]:
    """Return the options of inductor with which ops are products of matrices by this kernel.

    Args:
        op: An op of two matrices, or as many of each, and what is added to the product, of its shape, or None.
        scaled: An op of two tensors of three axes, and the matrix that their product entry by entry is multiplied by.
        change: Puts the ops into a graph.
        sources: The files of what does, and of what else decides what is made of a graph.

    Returns:
        The options; none where inductor writes no vectors for the processor.
    """
    if pick_vec_isa() is invalid_vec_isa or sys.platform == "win32":  # whose compiler has other names for some things
        return {}
    for each, lowered in ((op, _lowered), (scaled, _lowered_scaled)):
        if each not in lowering.lowerings:
            lowering.register_lowering(each, type_promotion_kind=None)(lowered)
    return {"post_grad_custom_post_pass": _Pass(change, sources)}


def has_products() -> bool:
    """Tell whether what inductor compiles at the moment has these options."""
    return isinstance(config.post_grad_custom_post_pass, _Pass)


def _lowered(left: Any, right: Any, added: Any) -> Any:
    inputs = [_realised(operand) for operand in (left, right, added) if operand is not None]
    if added is not None and inputs[2].get_stride()[-1] != 1:
        inputs[2] = _realised(ir.ExternKernel.copy_input(inputs[2]))
    return _buffer(inputs, is_scaled=False)


def _lowered_scaled(left: Any, scale: Any, right: Any) -> Any:
    return _buffer([_realised(operand) for operand in (left, right, scale)], is_scaled=True)


def _buffer(inputs: Sequence[Any], *, is_scaled: bool) -> Any:
    """Return the product of the first two inputs, to which the third is added, or by which the first one is scaled."""
    left, right, *_ = inputs
    size = [*left.get_size()[:-1], right.get_size()[-1]]
    layout = ir.FixedLayout(left.get_device(), left.get_dtype(), size, ir.FlexibleLayout.contiguous_strides(size))
    render: Any = partial(_rendered, inputs, is_scaled)
    buffer = ir.CppTemplateBuffer(layout, inputs, render, template=None, choice=None)  # type: ignore[arg-type]
    buffer.allow_epilogue_fusion = False
    return ir.TensorBox.create(buffer)


def _realised(operand: Any) -> Any:
    """Return an operand that lies in memory."""
    found = ir.ExternKernel.realize_input(operand)
    found.freeze_layout()
    return found


def _rendered(inputs: Sequence[Any], is_scaled: bool, buffer: Any, **_: Any) -> tuple[Any, Any]:
    """Return the kernel of a product, and what writes its source."""
    kernel = CppTemplateKernel(str(Placeholder.KERNEL_NAME), parallel_num_threads())
    return kernel, partial(kernel.render, _Template(inputs, buffer, is_scaled=is_scaled))


class _Template:
    """What writes the source of a product of some inputs."""

    def __init__(self, inputs: Sequence[Any], buffer: Any, *, is_scaled: bool):
        self._inputs, self._buffer, self._is_scaled = inputs, buffer, is_scaled

    def render(self, kernel: Any) -> str:
        """Return the source, for a kernel that knows what its arguments are called."""
        names = ("left_", "right_", "scale_" if self._is_scaled else "added_")
        definition = kernel.def_kernel(
            inputs=dict(zip(names, self._inputs, strict=False)), outputs={"result_": self._buffer}
        )
        operands = [([*map(int, node.get_size())], [*map(int, node.get_stride())]) for node in self._inputs]
        product = Product.scaled(*operands) if self._is_scaled else Product.of(operands)
        dtype = self._inputs[0].get_dtype()
        isa, threads = pick_vec_isa(), parallel_num_threads()
        panels = product.panels(isa.bit_width() // (8 * dtype.itemsize), isa.bit_width() >= MANY_BITS)
        parts, part_rows = product.parts(threads, lcm(*(panel.rows for panel in panels)))
        left, right, result, *third = [
            f"&{kernel.index(node, [0] * len(node.get_size()))}"
            for node in (*self._inputs[:2], self._buffer, *self._inputs[2:])
        ]
        scale, added = (third[0], "nullptr") if self._is_scaled else (left, third[0] if third else "nullptr")
        if added != "nullptr":
            added = f"{added} + item * {product.added_item} + first * {product.added_row}"
        return _SOURCE.format(
            **product._asdict(),
            name=Placeholder.KERNEL_NAME,
            number=DTYPE_TO_CPP[dtype],
            summed=min(SUMMED, product.inner),
            definition=definition,
            parallel=f"#pragma omp parallel for num_threads({threads})" if product.is_shared(threads) else "",
            parts=parts,
            part_rows=part_rows,
            left=left,
            right=right,
            scale=scale,
            is_scaled=str(self._is_scaled).lower(),
            added=added,
            result=result,
            panels="\n        ".join(panel.call(product) for panel in panels),
        )


class Panel(NamedTuple):
    """Columns of the right matrix.

    Attributes:
        first: The first of them.
        vectors: How many vectors they are.
        last: How many numbers the last of these has.
        rows: By how many rows they are multiplied at a time.
        is_copied: Whether they are copied, to lie side by side or to be whole vectors.
    """

    first: int
    vectors: int
    last: int
    rows: int
    is_copied: bool

    def call(self, product: "Product") -> str:
        """Return the call that multiplies them."""
        kinds = f"{self.rows}, {self.vectors}, {self.last}, {str(self.is_copied).lower()}"
        added = f"added ? added + {self.first} : nullptr, {product.added_row}"
        return (
            f"panel<{kinds}>(left, scale, right + {self.first * product.right_column}, {added}, "
            f"result + {self.first}, rows);"
        )


Operand = tuple[Sequence[int], Sequence[int]]  # a shape, and strides


class Product(NamedTuple):
    """A product of matrices, or of so many, and how these lie in memory: how far apart are items, rows and columns."""

    items: int
    rows: int
    inner: int
    columns: int
    left_item: int
    left_row: int
    left_step: int
    right_item: int
    right_step: int
    right_column: int
    added_item: int = 0
    added_row: int = 0
    scale_item: int = 0
    scale_row: int = 0
    scale_step: int = 0

    @classmethod
    def of(cls, operands: Sequence[Operand]) -> "Product":
        """Return the product of two matrices, or as many of each, to which a third may be added.

        Args:
            operands: The shape and the strides of each.
        """
        sizes = [size for size, _ in operands]
        left, right, added = [[0] * (3 - len(steps)) + [*steps] for _, steps in [*operands, ([], [0])][:3]]
        items = sizes[0][0] if len(sizes[0]) > 2 else 1
        rows, inner = sizes[0][-2:]
        made = cls(items, rows, inner, sizes[1][-1], *left, *right, *added[:2])
        return made._joined() if made._is_one() else made

    @classmethod
    def scaled(cls, left: Operand, right: Operand, scale: Operand) -> "Product":
        """Return the product of as many matrices, that are multiplied by others entry by entry, and one matrix."""
        sizes, steps = left
        return cls(*[*sizes, right[0][-1], *steps, 0, *right[1], 0, 0, *scale[1]])

    def _is_one(self) -> bool:
        """Tell whether all items are one product with the same right matrix."""
        steps = (self.left_item, self.left_row), (self.added_item, self.added_row)
        return self.right_item == 0 and all(item == self.rows * row for item, row in steps)

    def _joined(self) -> "Product":
        return self._replace(items=1, rows=self.items * self.rows)

    def panels(self, width: int, has_many: bool) -> list[Panel]:
        """Return the panels of the right matrix, of about the same number of vectors.

        Args:
            width: The numbers of a vector.
            has_many: Whether there are 32 registers for vectors rather than 16.
        """
        rows = _MANY if has_many else _FEW
        vectors = -(-self.columns // width)
        each = -(-vectors // -(-vectors // max(rows)))
        found = []
        for first in range(0, vectors, each):
            count = min(each, vectors - first)
            last = min(width, self.columns - (first + count - 1) * width)
            is_copied = self.right_column != 1 or (last < width and not has_many)
            found.append(Panel(first * width, count, last, rows[count], is_copied))
        return found

    def is_shared(self, threads: int) -> bool:
        """Tell whether threads share the work."""
        return threads > 1 and self.items * self.rows * self.inner * self.columns >= threads * OF_A_THREAD

    def parts(self, threads: int, multiple: int) -> tuple[int, int]:
        """Return in how many parts the rows of an item are multiplied, and how many rows a part has, a multiple."""
        if self.items >= threads or not self.is_shared(threads):
            return 1, self.rows
        rows = -(-self.rows // (threads * multiple)) * multiple
        return -(-self.rows // rows), rows
