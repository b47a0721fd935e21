"""Recipes: what was done with terms of some axes, to be done with others of the same axes, as those of the next layer.

Layers of a network and steps of a recurrence have derivatives of the same axes, of other tensors. What becomes of terms
depends on their axes and coefficients, and never on what their factors name. So it is worked out once for each pattern:
the steps that it takes, as a recipe with a place for every tensor, and the axes of what it comes to.

That two terms are of one pattern is told from the identity of their axes, which costs nothing to compare. `interned`
gives terms of one pattern the same axes; what a recipe returns has those of its pattern already.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from hofunc.algebra.compose import compose
from hofunc.algebra.extents import distinct
from hofunc.algebra.labels import Axes, Label, shape_of
from hofunc.algebra.operators import Delta, Map
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Mask
from hofunc.plan.builder import Builder
from hofunc.plan.program import Register, Step

Worked = Callable[..., list[Term]]  # from a builder and terms, and what else it depends on


class _Place(int):
    """Stands for a register: that of a factor of the terms by its number, or after these the result of a step."""


class _Result(NamedTuple):
    """A term that a recipe comes to, its tensor by place."""

    coefficient: float
    factors: tuple[tuple[_Place | Register, Axes], ...]
    out: Axes
    slots: tuple[Axes, ...]


class Recipe(NamedTuple):
    """What becomes of terms.

    Attributes:
        steps: The steps that it takes; their results have the places after those of the terms' factors, in order.
        results: What it comes to.
        terms: Those that it was worked out for, by the axes of which it is found.
        contractions: How many contractions it took to work it out.
    """

    steps: tuple[tuple[Callable | Call, tuple[Any, ...]], ...]
    results: tuple[_Result, ...]
    terms: tuple[Term | None, ...]
    contractions: int

    def followed(self, builder: Builder, sources: Sequence[Register], times: float = 1) -> list[Term]:
        """Take the steps for tensors in the places of the factors, and return the terms, times a number."""
        found = [*sources]
        for function, args in self.steps:
            found.append(builder.emit(function, *[found[arg] if type(arg) is _Place else arg for arg in args]))
        return [
            Term(
                coefficient * times,
                tuple([Factor(found[name] if type(name) is _Place else name, axes) for name, axes in factors]),
                out,
                slots,
            )
            for coefficient, factors, out, slots in self.results
        ]


class _Draft(Builder):
    """Takes the steps of a recipe in place of a builder, from which it has what is not of the terms."""

    def __init__(self, whole: Builder):
        super().__init__(whole.lowered, whole.dtype, small=whole.small)
        self.recipes, self.patterns = whole.recipes, whole.patterns
        self.known, self.went_by = whole.known, whole.went_by
        self.rounds, self.has_rows = whole.rounds, whole.has_rows
        self.sources: list[Register] = []
        self._whole = whole

    def source(self, axes: Axes) -> Register:
        """Return the register that stands for the next tensor of the terms, of given axes."""
        self.sources.append(Register(-1 - len(self.sources)))
        self._shapes[self.sources[-1].index] = shape_of(axes), self.dtype
        return self.sources[-1]

    def value(self, index: int) -> Register:
        return self._whole.value(index)

    def constant(self, numbers: tuple[float, ...]) -> Register:
        return self._whole.constant(numbers)

    def hold(self, tensor: torch.Tensor) -> Register:
        return self._whole.hold(tensor)

    def may_hold(self, nbytes: int) -> bool:
        return self._whole.may_hold(nbytes)

    def recipe(self, results: Sequence[Term], terms: tuple[Term | None, ...]) -> Recipe:
        """Return the recipe of the steps that were taken."""
        steps, names = self._needed(results), {register.index: register for register in self._producers}
        places: dict[Register, _Place] = {register: _Place(place) for place, register in enumerate(self.sources)}
        places |= {names[step.target]: _Place(len(self.sources) + number) for number, step in enumerate(steps)}

        def placed(arg: Any) -> Any:
            return places.get(arg, arg) if isinstance(arg, Register) else arg

        return Recipe(
            tuple((step.function, tuple(map(placed, step.args))) for step in steps),
            tuple(
                _Result(term.coefficient, tuple((placed(f.source), f.axes) for f in term.factors), term.out, term.slots)
                for term in (interned(self, term) for term in results)
            ),
            terms,
            self.effort - len(self._steps),
        )

    def _needed(self, results: Sequence[Term]) -> list[Step]:
        """Return the steps that results need, in order."""
        needed = {factor.source.index for term in results for factor in term.factors if type(factor.source) is Register}
        kept: list[Step] = []
        for step in reversed(self._steps):
            if step.target in needed:
                kept.append(step)
                needed.update([arg.index for arg in step.args if type(arg) is Register])
        return kept[::-1]


def by_recipe(builder: Builder, work: Worked, terms: Sequence[Term], *beside: Hashable) -> list[Term]:
    """Return ``work(builder, terms, *beside)``, contracted terms, by the recipe of such terms if there is one."""
    if any(is_applied(term) for term in terms):
        return [interned(builder, term) for term in work(builder, terms, *beside)]
    numbers: dict[Register, int] = {}
    order = [[numbers.setdefault(_register(builder, *factor), len(numbers)) for factor in t.factors] for t in terms]
    axes = tuple([(term.coefficient, axes_of(term)) for term in terms])
    key = (work, beside, axes, tuple([number for group in order for number in group]))
    recipe = builder.recipes.get(key)
    if recipe is None:
        draft, stand_ins = _Draft(builder), {}
        for number, (_, axes_of_factor) in zip(chain(*order), chain(*[term.factors for term in terms]), strict=True):
            if number not in stand_ins:
                stand_ins[number] = draft.source(axes_of_factor)
        given = [
            term._replace(
                factors=tuple(f._replace(source=stand_ins[n]) for n, f in zip(group, term.factors, strict=True))
            )
            for group, term in zip(order, terms, strict=True)
        ]
        recipe = draft.recipe(work(draft, given, *beside), tuple(terms))
        builder.recipes[key] = recipe
    builder.spend(recipe.contractions)
    return recipe.followed(builder, [*numbers])


def _register(builder: Builder, source: Any, axes: Axes) -> Register:
    return source if type(source) is Register else builder.tensor(source, axes)


class _Composition:
    """What becomes of terms that are composed.

    Attributes:
        term: Their composition, its coefficient that of terms whose own is one; None if it vanishes.
        terms: Those that it was worked out for, by the axes of which it is found.
        recipe: How it is contracted, once that is known.
    """

    __slots__ = ("recipe", "term", "terms")

    def __init__(self, builder: Builder, outer: Term, inners: Sequence[Term | None]):
        self.terms = (outer, *inners)
        units = [inner and inner._replace(coefficient=1) for inner in inners]
        term = compose(outer._replace(coefficient=1), units)
        self.term = term and interned(builder, term)
        self.recipe: Recipe | None = None

    def of(self, outer: Term, inners: Sequence[Term | None]) -> Term | None:
        """Return the composition of terms."""
        if self.term is None:
            return None
        coefficient, sources = _parts(outer, inners)
        count, factors, out, slots = self.term
        named = [Factor(source, factor.axes) for source, factor in zip(sources, factors, strict=False)]
        return Term(coefficient * count, (*named, *factors[len(sources) :]), out, slots)


def _composition(builder: Builder, outer: Term, inners: Sequence[Term | None]) -> _Composition:
    key = (axes_of(outer), *[inner and axes_of(inner) for inner in inners])
    found = builder.recipes.get(key)
    if found is None:
        builder.recipes[key] = found = _Composition(builder, outer, inners)
    return found


def joined(
    builder: Builder, work: Callable[[Term], Term | None], term: Term, sources: Sequence[Any], *beside: Hashable
) -> Term | None:
    """Return what comes of a term, composed with another of given sources, worked out once for all of the same axes.

    Args:
        builder: Keeps what is known.
        work: Works it out for the term times one: its first factors are of the given sources, and then of the term's.
        term: The term.
        sources: What the factors of the other term name.
        *beside: What else it depends on.
    """
    key = (joined, beside, axes_of(term))
    known = builder.recipes.get(key)
    if known is None:
        found = work(term._replace(coefficient=1))
        builder.recipes[key] = known = (term, found and interned(builder, found))
    template = known[1]
    if template is None:
        return None
    named = [*sources, *(factor.source for factor in term.factors)]
    own = [Factor(source, factor.axes) for source, factor in zip(named, template.factors, strict=False)]
    factors = (*own, *template.factors[len(named) :])
    return Term(template.coefficient * term.coefficient, factors, template.out, template.slots)


def composed(builder: Builder, outer: Term, inners: Sequence[Term | None]) -> Term | None:
    """Return what `compose` returns."""
    return _composition(builder, outer, inners).of(outer, inners)


def composed_and(
    builder: Builder, contract: Callable[[Builder, Term], Term], outer: Term, inners: Sequence[Term | None]
) -> Term | None:
    """Return the contraction of what `compose` returns, by a function that takes a step of planning for it."""
    found = _composition(builder, outer, inners)
    if found.term is None:
        return None
    coefficient, sources = _parts(outer, inners)
    count, factors, _, _ = found.term
    if len(factors) > len(sources) or any(isinstance(source, _OPERATORS) for source in sources):
        term = found.of(outer, inners)
        return term and contract(builder, term)
    builder.spend()
    if not factors:
        return found.of(outer, inners)
    if found.recipe is None:
        found.recipe = _drafted(builder, contract, found.term)
    named = zip(sources, factors, strict=True)
    registers = [s if type(s) is Register else builder.tensor(s, factor.axes) for s, factor in named]
    (result,) = found.recipe.followed(builder, registers, coefficient * count)
    return result


def worked(builder: Builder, contract: Callable[[Builder, Term], Term], term: Term) -> Term:
    """Return the contraction of a term, by the recipe of its pattern, by a function that takes a step of planning."""
    if not term.factors or is_applied(term):
        return contract(builder, term)
    builder.spend()
    recipe = builder.recipes.get((contract, axes_of(term)))
    if recipe is None:
        recipe = _recipe(builder, contract, interned(builder, term))
        builder.recipes[contract, axes_of(term)] = recipe._replace(terms=(term,))
    registers = [builder.tensor(factor.source, factor.axes) for factor in term.factors]
    (result,) = recipe.followed(builder, registers, term.coefficient)
    return result


def _recipe(builder: Builder, contract: Callable[[Builder, Term], Term], term: Term) -> Recipe:
    """Return how a term is contracted that has the axes of its pattern."""
    key = (contract, axes_of(term))
    if key not in builder.recipes:
        builder.recipes[key] = _drafted(builder, contract, term)
    return builder.recipes[key]


def _drafted(builder: Builder, contract: Callable[[Builder, Term], Term], term: Term) -> Recipe:
    """Work out how a term is contracted, times one."""
    draft = _Draft(builder)
    unit = [Factor(draft.source(factor.axes), factor.axes) for factor in term.factors]
    result = contract(draft, term._replace(coefficient=1, factors=tuple(unit)))
    return draft.recipe([result], (term,))


def _parts(outer: Term, inners: Sequence[Term | None]) -> tuple[float, list[Any]]:
    """Return the product of the coefficients of terms, and what their factors name."""
    coefficient, sources = outer.coefficient, [factor.source for factor in outer.factors]
    for inner in inners:
        if inner is not None:
            coefficient *= inner.coefficient
            sources += [factor.source for factor in inner.factors]
    return coefficient, sources


_OPERATORS = (Delta, Map, Mask)  # which are applied, to what they are multiplied with


def is_applied(term: Term) -> bool:
    """Tell whether a term has factors that are applied to what they are multiplied with."""
    return any(isinstance(factor.source, _OPERATORS) for factor in term.factors)


def axes_of(term: Term) -> tuple[Hashable, ...]:
    """Return what names the axes of a term, as long as there is a term that has them."""
    return (id(term.out), tuple(map(id, term.slots)), tuple([id(factor.axes) for factor in term.factors]))


def interned(builder: Builder, term: Term) -> Term:
    """Return a term with the axes of the first one of its pattern, hidden labels included."""
    key = _pattern(term)
    first = builder.patterns.setdefault(key, term)
    if first is term:
        return term
    factors = tuple([Factor(own.source, one.axes) for own, one in zip(term.factors, first.factors, strict=True)])
    return Term(term.coefficient, factors, first.out, first.slots)


def _pattern(term: Term) -> Hashable:
    """Return a key that terms share exactly if their axes are equal up to names, those of their factors included."""
    numbers: dict[Label | None, int] = {None: -1}
    found: list[Hashable] = [len(term.slots)]
    for axes in (term.out, *term.slots, *[factor.axes for factor in term.factors]):
        found.append(len(axes))
        for axis in axes:
            found.append(len(axis))
            for label, start, extent in axis:
                if label is not None and label not in numbers:
                    numbers[label] = len(numbers)
                    found += "new", distinct(label.size)
                found += numbers[label], distinct(start), distinct(extent)
    return tuple(found)
