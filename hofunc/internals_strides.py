"""What hofunc reads of inductor to compile faster: what it asks of indices, told without sympy.

To choose the loop that becomes vectors, inductor asks of each index by how much it grows with a variable, and has sympy
simplify the index before it looks, and the difference after. That was a third of all Python of compiling a derivative,
at 10 milliseconds an index, though nearly all are sums of multiples of variables, of which the answer is one of the
factors. To merge loops it asks that again, for all variables at once. To know what remains of an index for variables in
some ranges it makes axioms of these, which say something of quotients and remainders alone, and it looks for two
remainders that are one, of all pairs of terms, by patterns of sympy: the pairs that there are are few, and are seen by
what they divide by. It imports the compiler, which takes seconds, and so is imported where something is compiled.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, wraps
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch._inductor import sizevars
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

_ANY = sympy.Wild("any", integer=True)


def tell_strides() -> None:
    """Let the compiler find what it asks of indices in one look, or as before: the same answers."""
    of_sizes = sizevars.SizeVarAllocator
    if hasattr(sizevars.stride_at, "before"):
        return
    sizevars.simplify_index_in_vec_range = _told(_simplified, sizevars.simplify_index_in_vec_range)
    sizevars.stride_at = _told(_stride_at, sizevars.stride_at)
    sizevars.join_dimensions = _told(_joined, sizevars.join_dimensions)
    of_sizes._stride_vars = _told(_strides, of_sizes._stride_vars)  # type: ignore[method-assign]
    of_sizes._simplify_with_ranges = _told(_in_ranges, of_sizes._simplify_with_ranges)  # type: ignore[method-assign]


def _told(answer: Callable[..., Any], before: Any) -> Any:
    """Return what answers as a function says, or as before where that returns none."""

    @wraps(before)
    def told(*args: Any) -> Any:
        found = answer(*args)
        return before(*args) if found is None else found

    told.before = before  # type: ignore[attr-defined]
    return told


def _simplified(index: sympy.Expr, var: sympy.Symbol, _: int) -> sympy.Expr | None:
    return None if factor(index, var) is None else index


def _stride_at(index: sympy.Expr, var: sympy.Symbol) -> sympy.Expr | None:
    return factor(index, var)


def _strides(sizes: Any, index: sympy.Expr, variables: Sequence[Any], others: Sequence[Any]) -> list[sympy.Expr] | None:
    """Return by how much an index grows with each of some variables, of which zeros are none."""
    index, known = sizes.simplify(index), {*others}
    found = [sympy.S.Zero if var == 0 or var not in known else factor(index, var) for var in variables]
    return None if None in found else found


def _in_ranges(sizes: Any, index: sympy.Expr, _: Any) -> sympy.Expr | None:
    """Return an index of variables in some ranges, simplified; None if it divides something."""
    found = sizes.simplify(index)
    return None if found.has(FloorDiv, ModularIndexing) else found


def _joined(index: sympy.Expr) -> sympy.Expr | None:
    """Return an index in which no two remainders, and no remainder and quotient, are one; None if any may be."""
    if not index.has(ModularIndexing):
        return index
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(index)]
    divided = [(number, rest) for number, rest in terms if rest.has(ModularIndexing, FloorDiv)]
    if not all(isinstance(rest, ModularIndexing | FloorDiv) for _, rest in divided):
        return None
    known = {*_divisions(divided)}
    for number, rest in divided:
        if isinstance(rest, ModularIndexing):
            base, divisor, modulus = rest.args
            for made in (ModularIndexing(base, divisor * modulus, _ANY), FloorDiv(base, divisor * modulus)):
                more, other = made.as_coeff_Mul()
                if not isinstance(other, ModularIndexing | FloorDiv) or not known.isdisjoint(
                    _divisions([(number * modulus * more, other)])
                ):
                    return None
    return index


def _divisions(terms: Sequence[tuple[Any, Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield what tells terms that are a number times a quotient or remainder, whatever the modulus of that."""
    for number, rest in terms:
        yield number, type(rest), *rest.args[:2]


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
