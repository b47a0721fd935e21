"""Recipes: what was done with terms of some axes, to be done with others of the same axes, as those of the next layer.

Layers of a network and steps of a recurrence have derivatives of the same axes, of other tensors. What becomes of terms
depends on their axes, and never on what their factors name; on their coefficients it depends by how these compare only,
see `hofunc.plan.coefficients`. So it is worked out once for each pattern: the steps that it takes, as a recipe with a
place for every tensor and every number, and the axes of what it comes to. Maps and masks are
of the pattern, but for the tensors that they name, as those of layer norms and attention are the same in every layer;
not so what selects by a tensor of indices, as planning goes by their values. Selections that are joined into one which
names indices of its own have no recipe either, as these are of the builder that made them.

That two terms are of one pattern is told from the identity of their axes, which costs nothing to compare. `interned`
gives terms of one pattern the same axes; what a recipe returns has those of its pattern already.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch

from hofunc.algebra.compose import compose
from hofunc.algebra.extents import distinct
from hofunc.algebra.labels import Axes, Label, shape_of, whole
from hofunc.algebra.operators import Delta, Map
from hofunc.algebra.term import Factor, Term, visible
from hofunc.graph.node import Call, Mask, Ref
from hofunc.plan.builder import Builder, Looks
from hofunc.plan.coefficients import Arithmetic, Coefficient, settled
from hofunc.plan.places import Integers
from hofunc.plan.program import Register, Step
from hofunc.views import as_number

Worked = Callable[..., list[Term]]  # from a builder and terms, and what else it depends on


MOST = 8  # recipes of one pattern, which differ in how coefficients compare


class _Place(int):
    """Stands for a tensor or a number: those of factors come first, then what coefficients become, then results."""


class _Result(NamedTuple):
    """A term that a recipe comes to, its tensor by place."""

    coefficient: float | _Place
    factors: tuple[tuple[_Place | Register, Axes], ...]
    out: Axes
    slots: tuple[Axes, ...]


class Recipe(NamedTuple):
    """What becomes of terms.

    Attributes:
        steps: The steps that it takes, with the looks of their results where these are told; the results have the
            places after those of the terms' tensors and of numbers, in order.
        results: What it comes to.
        terms: Those that it was worked out for, by the axes of which it is found.
        contractions: How many contractions it took to work it out.
        is_of_these: Whether it is of these terms alone, as it takes something that their factors do not name.
    """

    steps: tuple[tuple[Callable | Call, tuple[Any, ...], Looks | None], ...]
    results: tuple[_Result, ...]
    terms: tuple[Term | None, ...]
    contractions: int
    is_of_these: bool

    def followed(
        self, builder: Builder, sources: Sequence[Register], numbers: Sequence[float] = (), times: float = 1
    ) -> list[Term]:
        """Take the steps for tensors in the places of the factors, and return the terms, times a number.

        Args:
            builder: Takes them.
            sources: The tensors.
            numbers: The coefficients, and what is made of them.
            times: The number.
        """
        found: list[Any] = [*sources, *map(as_number, numbers)]
        for function, args, looks in self.steps:
            register = builder.emit(function, *[found[arg] if type(arg) is _Place else arg for arg in args])
            if looks is not None:
                builder.tell(register, looks)
            found.append(register)
        return [
            Term(
                (found[coefficient] if type(coefficient) is _Place else coefficient) * times,
                tuple([Factor(found[name] if type(name) is _Place else name, axes) for name, axes in factors]),
                out,
                slots,
            )
            for coefficient, factors, out, slots in self.results
        ]


_DRAFTS = count(1)
_MOST = 1 << 32  # numbers of what a draft makes, which are its own: what is known of them is known to all builders


class _Draft(Builder):
    """Takes the steps of a recipe in place of a builder, from which it has what is not of the terms.

    Attributes:
        sources: The registers that stand for tensors of the terms.
        is_of_these: Whether the steps take the value of a node that the terms do not name.
    """

    def __init__(self, whole: Builder):
        super().__init__(whole.lowered, whole.dtype, small=whole.small)
        self.recipes, self.patterns = whole.recipes, whole.patterns
        self.known, self.went_by = whole.known, whole.went_by
        self.rounds, self.has_rows, self.in_blocks = whole.rounds, whole.has_rows, whole.in_blocks
        self.sources: list[Register] = []
        self.is_of_these = False
        self._whole = whole
        self._first = len(whole.lowered.graph.nodes) + next(_DRAFTS) * _MOST

    def given(self, terms: Sequence[Term], given: "_Given") -> list[Term]:
        """Return terms with registers that stand for their tensors, and take the same for what operators name."""
        self.sources = [Register(-1 - number) for number in range(len(given.registers))]
        stand_ins = dict(zip(given.registers, self.sources, strict=True))
        supply, places = iter([stand_ins[register] for register in given.tensors]), count()

        def other(factor: Factor) -> Factor:
            names = given.names.get(next(places))
            if names is None:
                register = next(supply)
                self.tell(register, (shape_of(factor.axes), self.dtype))
                return Factor(register, factor.axes)
            for name in names:
                if isinstance(name, Call):
                    self._called[type(name), distinct(name) if self.has_rows else name] = next(supply)
                else:
                    self._values[name.node] = next(supply)
            return factor

        return [term._replace(factors=tuple([other(factor) for factor in term.factors])) for term in terms]

    def value(self, index: int) -> Register:
        known = self._values.get(index)
        if known is None:
            self.is_of_these = True
            return self._whole.value(index)
        return known

    def stand_in(self, register: Register) -> Ref:
        number = register.index if register.index < 0 else self._first + register.index
        self._values[number] = register
        return Ref(number)

    def like(self) -> Register:
        return self._whole.like()

    def constant(self, numbers: tuple[float, ...] | Integers) -> Register:
        return self._whole.constant(settled(numbers))

    def hold(self, tensor: torch.Tensor) -> Register:
        return self._whole.hold(tensor)

    def may_hold(self, nbytes: int) -> bool:
        return self._whole.may_hold(nbytes)

    def recipe(self, results: Sequence[Term], terms: tuple[Term | None, ...], arithmetic: Arithmetic | None) -> Recipe:
        """Return the recipe of the steps that were taken, given what was done with coefficients."""
        steps, names = self._needed(results), {register.index: register for register in self._producers}
        calls = [(settled(step.function), tuple(map(_settled, step.args))) for step in steps]
        count = len(self.sources)
        places: dict[Register, _Place] = {register: _Place(place) for place, register in enumerate(self.sources)}
        after = count + (arithmetic.count if arithmetic else 0)
        places |= {names[step.target]: _Place(after + number) for number, step in enumerate(steps)}

        def placed(arg: Any) -> Any:
            if isinstance(arg, Register):
                return places.get(arg, arg)
            return _Place(count + arg.place) if type(arg) is Coefficient else arg

        return Recipe(
            tuple(
                (function, tuple(map(placed, args)), self._shapes.get(step.target))
                for step, (function, args) in zip(steps, calls, strict=True)
            ),
            tuple(
                _Result(
                    placed(term.coefficient),
                    tuple((placed(f.source), f.axes) for f in term.factors),
                    term.out,
                    term.slots,
                )
                for term in (interned(self, term) for term in results)
            ),
            terms,
            self.effort - len(self._steps),
            self.is_of_these or any(map(_names_any, results)),
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
    factors = [factor for term in terms for factor in term.factors]
    given = _given(builder, [factor.source for factor in factors], [factor.axes for factor in factors])
    if given is None:
        return [interned(builder, term) for term in work(builder, terms, *beside)]
    key = (work, beside, tuple([axes_of(term) for term in terms]), given.key)
    coefficients = [term.coefficient for term in terms]
    known: list[tuple[Recipe, Arithmetic]] = builder.recipes.setdefault(key, [])
    for recipe, arithmetic in known:
        numbers = arithmetic.with_numbers(coefficients)
        if numbers is not None:
            builder.spend(recipe.contractions)
            return recipe.followed(builder, given.registers, numbers)
    arithmetic = Arithmetic(coefficients)
    made = _drafted(builder, lambda draft, terms: work(draft, terms, *beside), terms, given, arithmetic)
    numbers = arithmetic.with_numbers(coefficients)
    if made is None or numbers is None:
        return [interned(builder, term) for term in work(builder, terms, *beside)]
    if not made.is_of_these:
        known[:] = [(made, arithmetic), *known[: MOST - 1]]
    builder.spend(made.contractions)
    return made.followed(builder, given.registers, numbers)


class _Given(NamedTuple):
    """What factors give to a recipe.

    Attributes:
        key: What tells it apart beside their axes.
        registers: Their tensors, each once.
        tensors: Their tensors, factor by factor.
        names: By place of a factor that is an operator, what it names tensors by.
    """

    key: Hashable
    registers: Sequence[Register]
    tensors: Sequence[Register]
    names: Mapping[int, Sequence[Ref | Call]]


def _given(builder: Builder, sources: Sequence[Any], axes: Sequence[Axes]) -> _Given | None:
    """Return what factors give to a recipe, by their sources and axes; None if it would go by values of tensors."""
    key: list[Hashable] = []
    tensors: list[Register] = []
    names: dict[int, Sequence[Ref | Call]] = {}
    for place, source in enumerate(sources):
        if type(source) is Register:
            tensors.append(source)
        elif not is_operator(source):
            tensors.append(builder.tensor(source, axes[place]))
        elif (named := _named(builder, source, axes[place])) is not None:
            form, names[place], registers = named
            key += place, form
            tensors += registers
        else:
            return None
    different = {*tensors}
    if len(different) == len(tensors):
        return _Given(tuple(key), tensors, tensors, names)
    numbers = {register: number for number, register in enumerate(dict.fromkeys(tensors))}
    return _Given((*key, *[numbers[register] for register in tensors]), [*numbers], tensors, names)


def _named(builder: Builder, source: Any, axes: Axes) -> tuple[Hashable, Sequence[Ref | Call], list[Register]] | None:
    """Return what an operator is but for the tensors, what it names these by, and they; None if their values matter."""
    if isinstance(source, Mask):
        return type(source).__name__, (source,), [builder.tensor(source, axes)]
    if not isinstance(source, Map):
        return source, (), []
    names = _names(source.args)
    if names and not _is_of_any(builder, source, names):
        return None
    looks = iter([_looks(builder, name) for name in names])
    form = source._replace(args=_with_names(source.args, lambda _: next(looks)))
    registers = [builder.register_of(name) if isinstance(name, Call) else builder.value(name.node) for name in names]
    return distinct(form) if builder.has_rows else form, names, registers


def _is_of_any(builder: Builder, source: Map, names: Sequence[Ref | Call]) -> bool:
    """Tell whether planning does not go by the values of the tensors that a map names, which are of the graph."""
    return not (source.selects or source.adds) and _are_of_graph(builder, names)


def _are_of_graph(builder: Builder, names: Sequence[Ref | Call]) -> bool:
    """Tell whether names are of nodes of the graph, and not of what is made for an operator alone."""
    count = len(builder.lowered.graph.nodes)
    return all(type(name) is not Ref or 0 <= name.node < count for name in names)


def _names(template: Any) -> list[Ref | Call]:
    """List the Refs and the outermost Calls of a nested tuple."""
    found: list[Ref | Call] = []
    _with_names(template, found.append)
    return found


def _with_names(template: Any, replace: Callable[[Ref | Call], Any]) -> Any:
    """Replace the Refs and the outermost Calls of a nested tuple, in order."""
    kind = type(template)
    if kind is tuple:
        return tuple([_with_names(item, replace) for item in template])
    return replace(template) if kind is Ref or kind is Call else template


def _names_any(term: Term) -> bool:
    """Tell whether a term has operators that name tensors."""
    sources = [factor.source for factor in term.factors]
    return any(isinstance(each, Mask) or (isinstance(each, Map) and _names(each.args)) for each in sources)


def _looks(builder: Builder, name: Ref | Call) -> Hashable:
    """Return shape and dtype of a node by name, None of what is computed for the operator alone."""
    if isinstance(name, Call):
        return None
    node = builder.lowered.graph.nodes[name.node]
    return node.shape, node.dtype


class _Pattern:
    """What becomes of terms of some axes as they are contracted.

    Attributes:
        term: The first of them, with axes that other terms of their pattern have too.
        recipes: How they are contracted, by what is given beside the axes.
    """

    __slots__ = ("_is_tensor", "recipes", "term")

    def __init__(self, builder: Builder, term: Term):
        self.term = interned(builder, term)
        self.recipes: dict[Hashable, Recipe] = {}
        self._is_tensor = _is_tensor(term)

    def as_it_is(self, builder: Builder, source: Any, coefficient: float) -> Term | None:
        """Return a term of one factor, given what that names, if there is nothing of it to contract."""
        if not self._is_tensor or is_operator(source):
            return None
        builder.spend()
        ((_, axes),) = self.term.factors
        return Term(coefficient, (Factor(builder.tensor(source, axes), axes),), self.term.out, self.term.slots)


class _Composition:
    """What becomes of terms that are composed.

    Attributes:
        terms: Those that it was worked out for, by the axes of which it is found.
        pattern: That of their composition, its coefficient that of terms whose own is one; None if it vanishes.
    """

    __slots__ = ("pattern", "terms")

    def __init__(self, builder: Builder, outer: Term, inners: Sequence[Term | None]):
        self.terms = (outer, *inners)
        units = [inner and inner._replace(coefficient=1) for inner in inners]
        term = compose(outer._replace(coefficient=1), units)
        self.pattern = term and _Pattern(builder, term)

    def of(self, outer: Term, inners: Sequence[Term | None]) -> Term | None:
        """Return the composition of terms."""
        if self.pattern is None:
            return None
        coefficient, sources = _parts(outer, inners)
        times, factors, out, slots = self.pattern.term
        named = [Factor(source, factor.axes) for source, factor in zip(sources, factors, strict=False)]
        return Term(coefficient * times, (*named, *factors[len(sources) :]), out, slots)


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
    if found.pattern is None:
        return None
    coefficient, sources = _parts(outer, inners)
    times, factors, _, _ = found.pattern.term
    sources += [factor.source for factor in factors[len(sources) :]]
    if sources and (taken := found.pattern.as_it_is(builder, sources[0], coefficient * times)) is not None:
        return taken
    given = _given(builder, sources, [factor.axes for factor in factors])
    recipe = None if given is None else found.pattern.recipes.get(given.key)
    if given is not None and recipe is not None:
        builder.spend()
        (result,) = recipe.followed(builder, given.registers, times=coefficient * times)
        return result
    term = found.of(outer, inners)
    return term and _contracted(builder, contract, term, given, found.pattern.recipes)


def worked(builder: Builder, contract: Callable[[Builder, Term], Term], term: Term) -> Term:
    """Return the contraction of a term, by the recipe of its pattern, by a function that takes a step of planning."""
    key = (contract, axes_of(term))
    known = builder.recipes.get(key)
    if known is None:
        found = _Pattern(builder, term)
        known = builder.recipes.setdefault((contract, axes_of(found.term)), (found.term, found))
        builder.recipes[key] = known = (term, known[1])
    pattern = known[1]
    if term.factors and (taken := pattern.as_it_is(builder, term.factors[0].source, term.coefficient)) is not None:
        return taken
    given = _given(builder, [factor.source for factor in term.factors], [factor.axes for factor in term.factors])
    return _contracted(builder, contract, term, given, pattern.recipes)


def _contracted(
    builder: Builder,
    contract: Callable[[Builder, Term], Term],
    term: Term,
    given: _Given | None,
    recipes: dict[Hashable, Recipe],
) -> Term:
    """Return the contraction of a term, by that of the recipes which is for what its factors give."""
    if given is None or not term.factors:
        return contract(builder, term)
    builder.spend()
    recipe = recipes.get(given.key)
    if recipe is None:
        unit = term._replace(coefficient=1)
        recipe = _drafted(builder, lambda draft, terms: [contract(draft, terms[0])], [unit], given)
        if recipe is None:
            return contract(builder, term)
        if not recipe.is_of_these:
            recipes[given.key] = recipe
    (result,) = recipe.followed(builder, given.registers, times=term.coefficient)
    return result


def _drafted(
    builder: Builder,
    work: Callable[[Builder, list[Term]], list[Term]],
    terms: Sequence[Term],
    given: _Given,
    arithmetic: Arithmetic | None = None,
) -> Recipe | None:
    """Work out a recipe for terms, with coefficients that note what becomes of them if others are to follow it.

    None if what the terms come to names what is made for it.
    """
    draft = _Draft(builder)
    own = draft.given(terms, given)
    if arithmetic is not None:
        numbers: list[Any] = arithmetic.given
        own = [term._replace(coefficient=number) for term, number in zip(own, numbers, strict=True)]
    results = work(draft, own)
    sources = [factor.source for term in results for factor in term.factors]
    names_made = not all(_are_of_graph(builder, _names(each.args)) for each in sources if isinstance(each, Map))
    return None if names_made else draft.recipe(results, tuple(terms), arithmetic)


def _settled(arg: Any) -> Any:
    """Return an argument of a step, in which a coefficient is a place only by itself."""
    return arg if type(arg) is Coefficient else settled(arg)


def _is_tensor(term: Term) -> bool:
    """Tell whether a term has one factor, along labels that are visible, each for a whole axis of its own."""
    if len(term.factors) != 1:
        return False
    labels = whole(term.factors[0].axes)
    return labels is not None and visible(term).keys() >= {*labels}


def _parts(outer: Term, inners: Sequence[Term | None]) -> tuple[float, list[Any]]:
    """Return the product of the coefficients of terms, and what their factors name."""
    coefficient, sources = outer.coefficient, [factor.source for factor in outer.factors]
    for inner in inners:
        if inner is not None:
            coefficient *= inner.coefficient
            sources += [factor.source for factor in inner.factors]
    return coefficient, sources


def is_operator(source: Any) -> bool:
    """Tell whether a factor of a source is applied to what it is multiplied with."""
    return isinstance(source, Delta | Map | Mask)


def is_applied(term: Term) -> bool:
    """Tell whether a term has factors that are applied to what they are multiplied with."""
    return any(is_operator(factor.source) for factor in term.factors)


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
