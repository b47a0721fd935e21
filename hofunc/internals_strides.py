"""What hofunc reads of inductor to compile faster: what it asks of indices, told without sympy.

To choose the loop that becomes vectors, inductor asks of each index by how much it grows with a variable, and has sympy
simplify the index before it looks, and the difference after. That was a third of all Python of compiling a derivative,
at 10 milliseconds an index, though nearly all are sums of multiples of variables, of which the answer is one of the
factors, and most others have quotients and remainders of variables by numbers beside these. To merge loops it asks that
again, for all variables at once, and then writes each index with the loops merged, to compare the two, which for such
sums says what the factors have said. What it expands is such a sum already, or one that it has expanded before, but
sympy keeps a thousand answers. To know what remains of an index for variables in some ranges it makes axioms of these,
which say something of quotients and remainders alone, and it looks for two remainders that are one, of all pairs of
terms, by patterns of sympy: the pairs that there are are few, and are seen by what they divide by. It imports the
compiler, which takes seconds, and so is imported where something is compiled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from itertools import chain, compress, product
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch._inductor import sizevars
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

_DIVIDED = FloorDiv, ModularIndexing
_ANY = sympy.Wild("any", integer=True)


def tell_strides() -> None:
    """Let the compiler find what it asks of indices in one look, or as before: the same answers."""
    of_sizes = sizevars.SizeVarAllocator
    if hasattr(sizevars.stride_at, "before"):
        return
    sizevars.simplify_index_in_vec_range = _told(_simplified, sizevars.simplify_index_in_vec_range)
    sizevars.stride_at = _told(_stride_at, sizevars.stride_at)
    sizevars.join_dimensions = _told(_joined, sizevars.join_dimensions)
    of_sizes.simplify = _told(_expanded, of_sizes.simplify)  # type: ignore[method-assign]
    of_sizes._simplify_loops_impl = _told(_loops, of_sizes._simplify_loops_impl)  # type: ignore[method-assign]
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


def _simplified(index: sympy.Expr, var: sympy.Symbol, length: int) -> sympy.Expr | None:
    """Return an index without quotients and remainders that stay as they are, or grow as a variable, along vectors."""
    terms = _terms(index, var)
    if terms is None:
        return None
    for number, rest in terms:
        if rest != var:
            is_whole = [each % length == 0 for each in rest.args[1:]]
            if is_whole[0]:
                index -= number * rest
            elif is_whole == [False, True] and rest.args[1] == 1:
                index += number * (var - rest)
    return index


def _stride_at(index: sympy.Expr, var: sympy.Symbol) -> sympy.Expr | None:
    terms = _terms(index, var)
    return None if terms is None else sympy.Add(*[n * (rest.xreplace({var: var + 1}) - rest) for n, rest in terms])


def _terms(index: sympy.Expr, var: sympy.Symbol) -> list[tuple[Any, sympy.Expr]] | None:
    """Return the numbers by which a variable enters an index, and the quotients and remainders of it by numbers.

    Return none if it enters otherwise.
    """
    terms = [(number, rest) for number, rest in _parts(index) if rest.has(var)]
    known = [rest == var or _is_by_numbers(rest, var) for _, rest in terms]
    return terms if all(known) else None


def _is_by_numbers(rest: sympy.Expr, var: sympy.Expr) -> bool:
    """Tell whether something is a quotient or remainder of a variable by numbers."""
    is_of_it = isinstance(rest, _DIVIDED) and var.is_Symbol and rest.args[0] == var
    return is_of_it and all(isinstance(each, sympy.Integer) for each in rest.args[1:])


def _strides(sizes: Any, index: sympy.Expr, variables: Sequence[Any], others: Sequence[Any]) -> list[sympy.Expr] | None:
    """Return by how much an index grows with each of some variables, of which zeros are none."""
    index, known = sizes.simplify(index), {*others}
    found = [sympy.S.Zero if var == 0 or var not in known else factor(index, var) for var in variables]
    return None if None in found else found


def _expanded(sizes: Any, index: Any) -> sympy.Expr | None:
    """Return an expression expanded; None if sizes are to be put into it."""
    return None if sizes.replacements else _expand(index)


@lru_cache(1 << 14, typed=True)
def _expand(index: Any) -> sympy.Expr:
    index = sympy.sympify(index)
    if isinstance(index, sympy.Expr) and all(rest is sympy.S.One or rest.is_Symbol for _, rest in _parts(index)):
        return index
    return sympy.expand(index)


_Indices = list[sympy.Expr]
_Kept = Callable[[Sequence[Any]], list[Any]]


def _loops(
    sizes: Any, variables: Sequence[sympy.Symbol], lengths: Sequence[Any], indices: Sequence[Any]
) -> tuple[_Indices, _Kept, _Kept] | None:
    """Return the lengths of nested loops, merged where indices let them be, None if any is no sum of multiples.

    Beside them stand what tells the variables of the loops that were given, by those of the merged, and what leaves out
    what belongs to loops that are no more.
    """
    left: list[Any] = [sizes.simplify(length) for length in lengths]
    strides = [[_stride(sizes, index, each) for each in variables] for index in indices]
    if not indices or not all(isinstance(each, sympy.Integer) for each in chain(left, *strides)):
        return None
    left = [None if length == 1 else length for length in left]

    def is_one(outer: int, inner: int) -> bool:
        return all(each[outer] * left[outer] == each[inner] for each in strides)

    places, was_merged = range(len(left))[::-1], True
    while was_merged:
        was_merged = False
        for first, second in product(places, places):
            if first != second and None not in (left[first], left[second]) and is_one(first, second):
                left[first], left[second], was_merged = left[first] * left[second], None, True

    def given(merged: Sequence[Any]) -> list[Any]:
        remaining = iter(merged)
        return [sympy.S.Zero if length is None else next(remaining) for length in left]

    def kept(each: Sequence[Any]) -> list[Any]:
        return [*compress(each, [length is not None for length in left])]

    return kept(left), given, kept


def _stride(sizes: Any, index: Any, var: Any) -> sympy.Expr | None:
    """Return by how much an index grows with a variable; None if it is no sum of multiples, or no index."""
    return factor(sizes.simplify(index), var) if isinstance(index, sympy.Expr) and var.is_Symbol else None


def _in_ranges(sizes: Any, index: sympy.Expr, ranges: Mapping[sympy.Symbol, Any]) -> sympy.Expr | None:
    """Return an index of variables in some ranges, simplified; None if it divides something else than these."""
    found = sizes.simplify(index)
    if not found.has(*_DIVIDED):
        return found
    found = sizevars.join_dimensions(found)
    terms = [(number, _in_range(rest, ranges)) for number, rest in _parts(found)]
    if any(rest is None for _, rest in terms):
        return None
    made = sympy.Add(*[number * rest for number, rest in terms])
    return found if made == found else sizes._simplify_with_ranges(made, ranges)


def _in_range(rest: sympy.Expr, ranges: Mapping[sympy.Symbol, Any]) -> sympy.Expr | None:
    """Return a quotient or remainder of a variable in a range, by numbers, or what is none; None of any other one."""
    if not rest.has(*_DIVIDED):
        return rest
    length = ranges.get(rest.args[0])
    if not _is_by_numbers(rest, rest.args[0]) or not isinstance(length, int | sympy.Integer) or length < 1:
        return None
    base, divisor, *modulus = rest.args
    if length <= divisor:
        return sympy.S.Zero
    return FloorDiv(base, divisor) if modulus and length <= divisor * modulus[0] else rest


def _joined(index: sympy.Expr) -> sympy.Expr | None:
    """Return an index in which remainders, and remainders and quotients, that are one are written as one.

    Return none if any may be, of what is no variable, or by what is no number.
    """
    if not index.has(ModularIndexing):
        return index
    divided = [(number, rest) for number, rest in _parts(index) if rest.has(*_DIVIDED)]
    if not all(isinstance(rest, _DIVIDED) for _, rest in divided):
        return None
    if all(_is_by_numbers(rest, rest.args[0]) for _, rest in divided):
        return _joined_by_numbers(index, divided)
    known = {*_divisions(divided)}
    for number, rest in divided:
        if isinstance(rest, ModularIndexing):
            base, divisor, modulus = rest.args
            for made in (ModularIndexing(base, divisor * modulus, _ANY), FloorDiv(base, divisor * modulus)):
                more, other = made.as_coeff_Mul()
                if not isinstance(other, _DIVIDED) or not known.isdisjoint(
                    _divisions([(number * modulus * more, other)])
                ):
                    return None
    return index


def _joined_by_numbers(index: sympy.Expr, divided: Sequence[tuple[Any, sympy.Expr]]) -> sympy.Expr:
    """Return an index with the first of its remainders that goes on in another one, or in a quotient, joined to it."""
    known = dict(zip([*_divisions(divided)][::-1], divided[::-1], strict=True))  # the first of several
    for kind in (ModularIndexing, FloorDiv):
        for number, rest in divided:
            if isinstance(rest, ModularIndexing):
                base, divisor, modulus = rest.args
                next_number, more = known.get((number * modulus, kind, base, divisor * modulus), (0, None))
                if more is not None:
                    made = kind(base, divisor, *[modulus * each for each in more.args[2:]])
                    return sizevars.join_dimensions(index - number * rest - next_number * more + number * made)
    return index


def _parts(index: sympy.Expr) -> list[tuple[Any, sympy.Expr]]:
    """Return the terms of a sum, each as a number and what that is multiplied with."""
    return [term.as_coeff_Mul() for term in sympy.Add.make_args(index)]


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
