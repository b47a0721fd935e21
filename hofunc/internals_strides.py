"""What hofunc reads of inductor to compile faster: how far apart a loop reads numbers, told without sympy.

To choose the loop that becomes vectors, inductor asks of each index by how much it grows with a variable, and has sympy
simplify the index before it looks, and the difference after. That was a third of all Python of compiling a derivative,
at 10 milliseconds an index, though nearly all are sums of multiples of variables, of which the answer is one of the
factors. It imports the compiler, which takes seconds, and so is imported where something is compiled.
"""

from functools import lru_cache
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch._inductor import sizevars


def tell_strides() -> None:
    """Let the compiler find strides of sums of multiples in one look, and others as before: the same strides."""
    if not hasattr(sizevars.stride_at, "before"):
        sizevars.simplify_index_in_vec_range = _simplified(sizevars.simplify_index_in_vec_range)
        sizevars.stride_at = _stride_at(sizevars.stride_at)


def _simplified(before: Any) -> Any:
    def simplify_index_in_vec_range(index: sympy.Expr, var: sympy.Symbol, vec_length: int) -> Any:
        return before(index, var, vec_length) if factor(index, var) is None else index

    simplify_index_in_vec_range.before = before  # type: ignore[attr-defined]
    return simplify_index_in_vec_range


def _stride_at(before: Any) -> Any:
    def stride_at(index: sympy.Expr, var: sympy.Symbol) -> Any:
        found = factor(index, var)
        return before(index, var) if found is None else found

    stride_at.before = before  # type: ignore[attr-defined]
    return stride_at


@lru_cache(1 << 12)
def factor(index: sympy.Expr, var: sympy.Symbol) -> sympy.Expr | None:
    """Return the number by which a variable enters in an index, if it is a number times that and what is without it."""
    total: Any = sympy.S.Zero
    for term in sympy.Add.make_args(index):
        if not term.has(var):
            continue
        number, rest = term.as_coeff_Mul()
        if rest != var:
            return None
        total += number
    return total
