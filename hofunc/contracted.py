"""Contractions of derivatives: `einsum` over the axes of an output, of the slots of a derivative, and of operands."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, count
from math import prod
from typing import Any, NamedTuple, overload

import torch

from hofunc.arguments import (
    Arguments,
    check_function,
    check_limits,
    check_strategy,
    split,
)
from hofunc.complex_tensors import by_parts, is_complex, product_of_parts, taken_apart
from hofunc.dynamo import compilable
from hofunc.given import check_flag, refuse
from hofunc.graph.identity import PLAIN
from hofunc.graph.recording import Recording
from hofunc.pattern import PARTS, Bound, Pattern, Tree, bound, parsed
from hofunc.plan import contraction
from hofunc.plan.blueprint import Limits
from hofunc.plan.wanted import Contraction, Contractions
from hofunc.run.evaluate import Evaluation, check_sizes
from hofunc.run.nest import Nest, nesting
from hofunc.sampling import Estimate, Sampled, check_drawing, check_unsampled, checked
from hofunc.slot_arguments import (
    check_argnums_of_slots,
    check_operands,
    check_signature,
    for_each,
    in_order,
    is_argnums,
    is_none,
    meant,
    places_of,
    positions_in,
)
from hofunc.transform import Options, Transform, differentiated
from hofunc.trees import Kept, tree_flatten, tree_unflatten

STRATEGIES = ("auto", *contraction.STRATEGIES)
MOST_KEPT = 64  # forms of calls, and shapes, for which what patterns mean is kept
MOST_MEANT = 256  # transforms for which it is, of which those count as one that mean the same by their patterns


@overload
def einsum(
    f: Callable[..., Any],
    pattern: Any,
    argnums: Any = 0,
    *,
    wrt: Any = ...,
    has_aux: bool = ...,
    strategy: str = ...,
    chunk_size: int | None = ...,
    max_bytes: int | None = ...,
    estimate: None = None,
) -> "Einsum": ...


@overload
def einsum(
    f: Callable[..., Any],
    pattern: Any,
    argnums: Any = 0,
    *,
    wrt: Any = ...,
    has_aux: bool = ...,
    strategy: str = ...,
    chunk_size: int | None = ...,
    max_bytes: int | None = ...,
    estimate: Mapping[str, int],
    directions: str = ...,
    generator: torch.Generator | None = ...,
    with_error: bool = ...,
) -> Estimate: ...


@compilable
def einsum(
    f: Callable[..., Any],
    pattern: Any,
    argnums: Any = 0,
    *,
    wrt: Any = None,
    has_aux: bool = False,
    strategy: str = "auto",
    chunk_size: int | None = None,
    max_bytes: int | None = None,
    estimate: Mapping[str, int] | None = None,
    directions: str = "rademacher",
    generator: torch.Generator | None = None,
    with_error: bool = False,
) -> "Einsum | Estimate":
    """Return a function that computes a contraction of a derivative of f, at the cost of the contraction.

    The pattern says what is wanted as that of ``torch.einsum`` does, of the dense derivative: a group of names for the
    axes of the output, one for those of the argument for every time that f is differentiated, and one for every
    operand; after the arrow, the names of the axes of the result. The whole derivative is never computed: a label is
    summed as soon as all that bears it has met.

    ======================================  ====================================================
    for f from (b, i) to (b,)               is
    ======================================  ====================================================
    ``b, b i -> b i``                       the gradient of every row
    ``b, b i, b i -> b``                    the Laplacian of every row
    ``b, b i, b i, b j, b j -> b``          the biharmonic
    ``b, b 0, b 0, b 1 -> b``               the partial derivative u_xxy: a number is a place
    ``b, b i, b j, b j -> b i``             the Hessian of every row times an operand
    ``b, b i, b j, i j -> b``               the Laplacian weighted by an operand
    ``b, b i, b i -> b i``                  the diagonal of the Hessian of every row
    ``..., ... i, ... i -> ...``            the Laplacian, whatever axes of rows there are
    ``*o, *p, *q, *q -> *o *p``             the Hessian times an operand, for any shapes, and for pytrees
    ======================================  ====================================================

    Args:
        f: As for `hofunc.hod`.
        pattern: The pattern, or a tuple or dict of patterns, which are computed by one program. ``...`` stands for axes
            that all groups which have it share; ``*p`` for all other axes of its group, and of a pytree for those of
            all of its leaves.
        argnums: The positional argument to differentiate by, or a tuple with one for every slot, of which each may be
            a tuple of several, which then are one pytree; for several patterns also a tuple or dict of these.
        wrt: In place of argnums, the same of names of parameters of f or of what it taps, see `hofunc.hod`.
        has_aux: As for `hofunc.hod`.
        strategy: ``"forward"`` propagates derivatives along the slots from the input to the output; ``"mixed"`` does so
            along all but one at a time, and takes the rest by one adjoint pass; ``"reverse"`` reads one slot off
            adjoints that are propagated along the others; ``"blocks"`` computes whole derivatives and contracts them;
            ``"each"`` takes, for each of several patterns, that of the first three which should be the fastest;
            ``"auto"`` plans all and takes the cheapest.
        chunk_size: How many rows, along the first axis of the input, to run at a time, for a function that treats rows
            independently, and results that have them; else how many coordinates of a slot, or of the output, whose axes
            the result has, or entries of a label that is summed.
        max_bytes: As for `hofunc.hod`.
        estimate: For labels whose sums are to be estimated, the number of samples, one for all of them; for a single
            pattern, and arguments that are tensors. The sum is the mean of the estimate, whose error falls as one over
            the root of that number. Samples are drawn at every call.
        directions: What is drawn: ``"rademacher"`` for directions of random signs and ``"gaussian"`` for normal ones,
            for labels that stand on two axes; or ``"coordinates"`` for places, for any number of axes. The sum of
            fourth derivatives by one coordinate each, ``b, b i, b i, b i, b i -> b``, cannot be had of random
            directions, which know pairs alone; the biharmonic can, of two labels.
        generator: Draws the samples; None for torch's own.
        with_error: Whether to return a pair of the estimate and its standard error, of at least two samples.

    Returns:
        Function with f's signature and a keyword argument ``operands``: a tuple of tensors, or of pytrees where the
        pattern has ``*p``; for several patterns a tuple or dict of such tuples, in which those that have none may be
        left out of a dict. All other groups stand for slots, which have an axis of real and imaginary part of complex
        arguments. Its result is that of ``torch.einsum``, of the dtype of the output, or complex by complex operands;
        nested by the structure of what f returns, and of every argument whose ``*p`` is in the result; and by that of
        the patterns. It is differentiable by autograd and under torch.func, by operands too.

    Raises:
        ArgumentError: The pattern is none, or does not fit what f takes and returns; an operand is no
            floating-point or complex tensor; f has a parameter called operands; or as from `hofunc.hod`, as are the
            other errors.

    Cost:
        One call of f, and the steps of the plan: for the Laplacian of rows of d numbers each node of f carries d + 2
        numbers, for the biharmonic about d (d + 5) / 2 + 2, for a Hessian times a vector 4.

    Source:
        Labels of a derivative, and the rule of Faa di Bruno, as in `hofunc.hod`; summing early as collapsed Taylor mode
        does for a sum of directions (Dangel, Siebert, Zeinhofer and Walther, 2025), here for any pattern.

    Example:
        >>> laplacian = hofunc.einsum(lambda x: (x**3).sum(-1), "b, b i, b i -> b")
        >>> laplacian(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        tensor([18.,  6.])
        >>> hvp = hofunc.einsum(lambda x: (x**3).sum(), ", i, j, j -> i")
        >>> hvp(torch.tensor([1.0, 2.0]), operands=(torch.tensor([1.0, -1.0]),))
        tensor([  6., -12.])
    """
    check_drawing("einsum", directions, generator, with_error)
    if estimate is None:
        unless_given = {"directions": "rademacher", "generator": None, "with_error": False}
        given = {"directions": directions, "generator": generator, "with_error": with_error}
        check_unsampled("einsum", "estimate", {name: x for name, x in given.items() if x != unless_given[name]})
        return Einsum("einsum", f, pattern, argnums, has_aux, strategy, Limits(chunk_size, max_bytes), wrt)
    options = {"has_aux": has_aux, "strategy": strategy, "chunk_size": chunk_size, "max_bytes": max_bytes}
    drawn = {"directions": directions, "generator": generator, "with_error": with_error}
    return estimated("einsum", f, pattern, argnums, estimate, wrt=wrt, **options, **drawn)  # type: ignore[arg-type]


class _Form(NamedTuple):
    """How a call is put together: a number for all calls that are so, and the operands of every pattern.

    Operands are pytrees of numbers of tensors.
    """

    number: int
    operands: tuple[tuple[Any, ...], ...]


class _Meaning(NamedTuple):
    """What patterns mean for some shapes.

    Attributes:
        wanted: What is asked for of a plan.
        factors: Of how many complex numbers each result of that is the product, by parts, which are its last axes.
        nests: How to nest each of so many results.
    """

    wanted: Contractions
    factors: tuple[int, ...]
    nests: tuple[tuple[int, Nest], ...]


class _Known(NamedTuple):
    """What is known of the calls of transforms that mean the same by their patterns, whatever their functions are.

    A function that makes a transform anew at every call, of another function that is made anew, need not read its
    pattern for the same arguments again.

    Attributes:
        forms: The forms of calls.
        meanings: What the patterns mean for each of these, and shapes.
        numbers: Yields numbers for forms.
    """

    forms: Kept[_Form]
    meanings: Kept[_Meaning]
    numbers: Iterator[int]


@lru_cache(maxsize=MOST_MEANT)
def _known(*_: Hashable) -> _Known:
    """Return what is known of the calls of transforms of a class, given all that tells apart what they mean."""
    return _Known(Kept(MOST_KEPT), Kept(MOST_KEPT), count())


class Einsum(Transform):
    """A function with the signature of f that computes contractions of derivatives of f, as `einsum` returns it."""

    _keywords: tuple[str, ...] = ("operands",)

    def __init__(
        self,
        name: str,
        f: Callable[..., Any],
        pattern: Any,
        argnums: Any,
        has_aux: bool,
        strategy: str,
        limits: Limits,
        wrt: Any = None,
    ):
        check_function(name, f)
        check_flag(name, "has_aux", has_aux)
        check_strategy(name, strategy, STRATEGIES)
        check_limits(name, limits.chunk_size, limits.max_bytes)
        check_signature(name, f, self._keywords)
        texts, self._spec = tree_flatten(pattern)
        if not texts:
            refuse(name, "pattern", f"{pattern!r}", "one at least", 'The value itself is "*o -> *o".')
        self._patterns = [parsed(name, text) for text in texts]
        argnums, parameters = (argnums, ()) if wrt is None else meant(name, f, wrt, argnums)
        self._argnums = for_each(name, "argnums", argnums, pattern, self._spec, 0, is_one=is_argnums)
        for each in self._argnums if wrt is None else ():
            check_argnums_of_slots(name, each)
        self._positions = tuple(dict.fromkeys(number for each in self._argnums for number in positions_in(each)))
        meant_by: tuple[Any, ...] = type(self), name, tuple(map(str, texts)), self._spec, repr(self._argnums)
        self._forms, self._meanings, self._numbers = _known(*meant_by, *self._told_apart())
        self._pattern = pattern
        options = Options(name, self._positions, has_aux, False, strategy, limits, None, False, False, parameters)
        super().__init__(f, options, (), _only)
        self._told = (*self._told, self._forms)  # which those share that mean the same by their patterns, nobody else

    def _told_apart(self) -> tuple[Hashable, ...]:
        """Return what tells transforms of this class apart, beside their names, patterns and argnums."""
        return ()

    def _split_by(self, args: tuple, kwargs: dict, changes: Mapping[str, Any]) -> Arguments:
        """Take the arguments of a call apart, with the operands after those to differentiate by."""
        name, taps = self._options.name, self._options.taps
        size = len(args)
        variables = (*in_order(self._positions, size), *taps)
        arguments = split(name, args, self._passed(kwargs), variables, changes, self._options.parameters)
        leaves, are_complex, given = list(arguments.leaves), arguments.are_complex, []
        for keyword in self._keywords:
            if keyword in kwargs:
                flat, spec = tree_flatten(kwargs[keyword])
                given.append((keyword, len(leaves), spec))
                kinds = check_operands(name, keyword, kwargs[keyword], flat)
                are_complex = (*are_complex, *kinds)
                leaves += map(by_parts, flat) if True in kinds else flat
        form = self._form((size, arguments.variables, arguments.specs, tuple(given)))
        return arguments._replace(leaves=leaves, are_complex=are_complex, operands=form.operands, form=form.number)

    def _form(self, key: tuple[Any, ...]) -> _Form:
        """Return the form of a call, of which the last of the key is where the leaves of keyword arguments begin."""
        form = self._forms.of(key)
        if form is None:
            numbered = {
                keyword: tree_unflatten([*range(start, start + spec.num_leaves)], spec)
                for keyword, start, spec in key[-1]
            }
            form = _Form(next(self._numbers), tuple(map(tuple, self._given(numbered))))
            self._forms.keep(key, form)
        return form

    def _given(self, given: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Return the operands of every pattern, given what the keyword arguments hold."""
        operands = given.get("operands", ())
        found = for_each(self._options.name, "operands", operands, self._pattern, self._spec, (), is_one=is_none)
        for each in found:
            if not isinstance(each, tuple | list):
                expected = "a tuple of operands, for each pattern"
                refuse(self._options.name, "operands", "one", expected, "A single operand is given as (v,).")
        return found

    def _operand(self, number: int) -> str:
        """Name an operand, for errors."""
        return f"operands[{number}]"

    def _outputs(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, Any]]:
        return super()._outputs(*args, **self._passed(kwargs))

    def _joint_bytes(self, outputs: Any, arguments: Arguments) -> int:
        meaning, given = self._meaning(outputs, arguments), tree_flatten(taken_apart(outputs))[0]
        total = 0
        for (one, *_), factors in zip(meaning.wanted.sums, meaning.factors, strict=True):
            sizes = one.sizes_in(given, arguments.leaves)
            total += given[one.output[0]].itemsize * prod(sizes[name] for name in one.result) if factors else 0
        return total

    def _meaning(self, output: Any, arguments: Arguments) -> _Meaning:
        """Return what the patterns mean for what f returned and takes."""
        outputs, spec = tree_flatten(output)
        are_complex = tuple(map(is_complex, outputs)), arguments.are_complex
        shapes_given = *[leaf.shape for leaf in outputs], *[leaf.shape for leaf in arguments.leaves]
        key = (arguments.form, spec, are_complex, *shapes_given)
        if not PLAIN.issuperset(map(type, (*outputs, *arguments.leaves))):
            check_sizes((*arguments.leaves, *outputs))  # which to compare would fix, if they are symbols
        meaning = self._meanings.of(key)
        if meaning is None:
            by_part = [
                (*leaf.shape, 2) if is_one else tuple(leaf.shape)
                for leaf, is_one in zip(outputs, are_complex[0], strict=True)
            ]
            output = Tree(
                tuple(range(len(outputs))),
                tuple(by_part),
                spec,
                "the output of f",
                are_complex[0] if True in are_complex[0] else (),
            )
            each = [
                self._bind(pattern, argnums, operands, arguments, output)
                for pattern, argnums, operands in zip(self._patterns, self._argnums, arguments.operands, strict=True)
            ]
            specs = [
                [spec if slot < 0 else self._spec_of(argnums, slot, arguments) for slot in meant.nests]
                for meant, argnums in zip(each, self._argnums, strict=True)
            ]
            nests = [(len(meant.results), nesting(form)) for meant, form in zip(each, specs, strict=True)]
            sums = tuple([sums for meant in each for sums in meant.results])
            meaning = _Meaning(Contractions(sums), tuple(map(self._factors, sums)), tuple(nests))
            self._meanings.keep(key, meaning)
        return meaning

    def _factors(self, sums: Sequence[Contraction]) -> int:
        """Return how many labels of parts the result of contractions has that are added up."""
        kinds = {tuple([name for name in one.result if name.startswith(PARTS)]) for one in sums}
        if len(kinds) > 1:
            got, remedy = "a sum of real and complex terms", "Make outputs, and operands, complex for all, or parts."
            refuse(self._options.name, "pattern", got, "terms of one kind", remedy)
        return len(kinds.pop())

    def _bind(
        self, pattern: Pattern, argnums: Any, operands: Sequence[Any], arguments: Arguments, output: Tree
    ) -> Bound:
        """Return what one pattern means, given what f returned."""
        name = self._options.name
        count = len(pattern.others) - len(operands)
        if count < 0 or (not isinstance(argnums, int | str) and count != len(argnums)):
            _refuse_count(pattern, argnums, len(operands))
        starts = [0, *accumulate(spec.num_leaves for spec in arguments.specs)]
        slots: list[Tree] = []
        for entry in [argnums] * count if isinstance(argnums, int | str) else argnums:
            places = places_of(entry, arguments)
            numbers = tuple(chain(*(range(starts[place], starts[place + 1]) for place in places)))
            if len({*places}) < len(places):
                refuse(name, "argnums", repr(entry), "every argument once", "Leave the second one out.")
            names = " and ".join(map(arguments.name_of, places))
            spec = self._spec_of(argnums, len(slots), arguments)
            slots.append(_tree(numbers, spec, names, arguments))
        given = [_tree(*tree_flatten(tree), self._operand(number), arguments) for number, tree in enumerate(operands)]
        self._check_shapes(pattern, output, slots, given)
        return bound(pattern, output, slots, given)

    def _check_shapes(self, pattern: Pattern, output: Tree, slots: Sequence[Tree], operands: Sequence[Tree]) -> None:
        """Check what a pattern is for, where its errors are not to speak of a pattern."""

    def contractions(
        self, output: Any, *args: Any, **kwargs: Any
    ) -> tuple[Contractions, list[torch.Tensor], tuple[int, ...]]:
        """Return what is asked for, given what f returns to be differentiated at some arguments.

        Beside it are the inputs that it is of, complex ones by parts, and of how many complex numbers each result is
        the product.
        """
        arguments = self._split(args, kwargs)
        meaning = self._meaning(output, arguments)
        return meaning.wanted, arguments.leaves, meaning.factors

    def _wanted(self, output: Any, arguments: Arguments) -> Contractions:
        """Return the contractions of all patterns."""
        return self._meaning(output, arguments).wanted

    def _assembled(
        self, tensors: Sequence[Any], recording: Recording, arguments: Arguments, evaluation: Evaluation
    ) -> Any:
        """Nest the results, given the tensors that f returned."""
        meaning = self._meanings.latest
        if meaning is None or meaning.wanted is not evaluation.wanted:
            meaning = self._meaning(differentiated(tree_unflatten(recording.leaves, recording.spec)), arguments)
        found, results, start = evaluation.contracted(meaning.wanted), [], 0
        if True in arguments.are_complex or any(meaning.factors):
            found = [_whole(evaluation, *each) for each in zip(found, meaning.factors, strict=True)]
        for size, nest in meaning.nests:
            results.append(nest(found[start : start + size]))
            start += size
        result = tree_unflatten(results, self._spec)
        return (result, recording.returned_with(tensors)[1][0]) if self._options.has_aux else result

    @staticmethod
    def _spec_of(argnums: Any, slot: int, arguments: Arguments) -> Any:
        entry = argnums if isinstance(argnums, int | str) else argnums[slot]
        specs = [arguments.specs[place] for place in places_of(entry, arguments)]
        trees = tuple([tree_unflatten([None] * spec.num_leaves, spec) for spec in specs])
        return specs[0] if isinstance(entry, int | str) else tree_flatten(trees)[1]


class SampledEinsum(Einsum):
    """A contraction of which some operands, after those of the caller, are samples that stand at several places."""

    def __init__(self, found: Sampled, before: int, *args: Any):
        self._before, self._uses = before, found.uses
        super().__init__(*args)

    def _told_apart(self) -> tuple[Hashable, ...]:
        return self._before, self._uses

    def _given(self, given: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        ((*operands,),) = super()._given(given)
        return [[*operands[: self._before], *(operands[self._before + use] for use in self._uses)]]


def estimated(
    name: str,
    f: Callable[..., Any],
    pattern: Any,
    argnums: Any,
    estimate: Mapping[str, int],
    *,
    wrt: Any = None,
    has_aux: bool = False,
    strategy: str = "auto",
    chunk_size: int | None = None,
    max_bytes: int | None = None,
    directions: str = "rademacher",
    generator: torch.Generator | None = None,
    with_error: bool = False,
    kind: type[SampledEinsum] = SampledEinsum,
) -> Estimate:
    """Return an estimate by samples of some labels, given the name of a transform; for the options see `einsum`."""
    sampling = checked(name, estimate, directions, generator, with_error)
    check_flag(name, "has_aux", has_aux)
    if has_aux:
        refuse(name, "has_aux", "an estimate", "one of what f returns alone", "Return aux from another call of f.")
    variables = argnums if wrt is None else meant(name, f, wrt, argnums)[0]
    rest = False, strategy, Limits(chunk_size, max_bytes), wrt

    def exact(found: Sampled, operands: int) -> SampledEinsum:
        return kind(found, operands, name, f, found.text, argnums, *rest)

    return Estimate(name, pattern, sampling, exact, variables)


def _refuse_count(pattern: Pattern, argnums: Any, operands: int) -> None:
    """Refuse a pattern that has not a group for every slot of argnums and every operand."""
    groups = len(pattern.others)
    remedy = "Each group after the first stands for a slot, by argnums, or for an operand."
    got, expected = f"{operands} operands", f"at most {groups}"
    if not isinstance(argnums, int | str) and len(argnums) > groups:
        got = f"{len(argnums)} slots, by argnums={argnums}"
    elif not isinstance(argnums, int | str):
        expected = f"{groups - len(argnums)}, as argnums={argnums} has one a slot"
    pattern.refuse(pattern.result, got, expected, remedy)


def _only(_: Any, computed: list) -> Any:
    return computed


def _whole(evaluation: Evaluation, found: Any, factors: int) -> Any:
    """Return a result as it is of complex factors, or, of none, so that view_as_complex takes the last axis."""
    if factors:
        return evaluation.emit(product_of_parts, found, factors)
    return evaluation.emit(torch.Tensor.contiguous, found)


def _tree(numbers: Sequence[int], spec: Any, name: str, arguments: Arguments) -> Tree:
    """Return some of the tensors of a call, given their numbers, their structure and what they are."""
    shapes = tuple([tuple(arguments.leaves[each].shape) for each in numbers])
    are_complex = tuple([arguments.are_complex[each] for each in numbers])
    return Tree(tuple(numbers), shapes, spec, name, are_complex if True in are_complex else ())
