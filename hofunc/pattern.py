"""Patterns of contractions, as they are written: ``"b, b i, b i -> b"``, and what they mean for given shapes.

A pattern has a group of names for the axes of the output, one for every slot, and one for every operand, parted by
commas; and after the arrow the names of the axes of the result. In a group, names are parted by spaces; a number is
the place that is taken of an axis; ``*p`` stands for any axes, as many as there are, and of a pytree for those of all
of its leaves; ``...`` does so for axes that everything has in common.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, product
from typing import Any, NamedTuple, NoReturn

from hofunc.errors import ArgumentError
from hofunc.internals import TreeSpec, tree_unflatten
from hofunc.plan.slots import Bearer, Index, tag
from hofunc.plan.wanted import Contraction
from hofunc.words import plural

PARTS = "re im"  # how the labels of parts of complex factors begin, as no name in a pattern does
_TOKEN = re.compile(r"\.\.\.|\*?[^\W\d]\w*|\d+")
Shape = Sequence[int]


class Token(NamedTuple):
    """A name or a number in a pattern, and where it starts."""

    text: str
    start: int

    @property
    def is_number(self) -> bool:
        """Whether it takes one place of an axis."""
        return self.text.isdigit()

    @property
    def is_several(self) -> bool:
        """Whether it stands for any number of axes."""
        return self.text == "..." or self.text[0] == "*"


class Group(NamedTuple):
    """The tokens of one tensor, and where it stands in the pattern."""

    tokens: tuple[Token, ...]
    start: int


class Pattern(NamedTuple):
    """A pattern.

    Attributes:
        transform: Name of the transform that it was given to.
        text: What was written.
        output: The axes of the output.
        others: Those of the slots, and then of the operands.
        result: The names of those of the result.
    """

    transform: str
    text: str
    output: Group
    others: tuple[Group, ...]
    result: Group

    def refuse(self, place: Token | Group, got: str, expected: str, remedy: str) -> NoReturn:
        """Raise an error that shows where in the pattern it is."""
        text = place.text if isinstance(place, Token) else " ".join(token.text for token in place.tokens)
        mark = " " * place.start + "^" * max(1, len(text))
        what = f"{self.transform}: the pattern\n    {self.text}\n    {mark}\n"
        raise ArgumentError(what, got=got, expected=expected, remedy=remedy)


def parsed(transform: str, text: Any) -> Pattern:
    """Read a pattern.

    Raises:
        ArgumentError: It is none.
    """
    if not isinstance(text, str):
        raise ArgumentError(
            f"{transform}: pattern",
            got=type(text).__name__,
            expected="a string, or a tuple or dict of strings",
            remedy='The Laplacian of every row is "b, b i, b i -> b".',
        )
    return _parsed(transform, str(text))


@lru_cache(maxsize=1024)
def _parsed(transform: str, text: str) -> Pattern:
    """Read a pattern, see above."""
    shell = Pattern(transform, text, Group((), 0), (), Group((), len(text)))
    if text.count("->") != 1:
        arrows = text.count("->")
        shell.refuse(shell.result, f"{arrows} arrows", "one", "Write the axes of the result after '->'.")
    start = text.index("->")
    groups = [*_groups(shell, text[:start])]
    pattern = Pattern(transform, text, groups[0], tuple(groups[1:]), _group(shell, text[start + 2 :], start + 2))
    known, met = {token.text for group in groups for token in group.tokens}, set()
    for token in pattern.result.tokens:
        if token.is_number or token.text not in known or token.text in met:
            expected = f"each of {sorted(name for name in known if not name.isdigit())} once at most"
            pattern.refuse(token, repr(token.text), expected, "Name what stands before the arrow.")
        met.add(token.text)
    return pattern


def _groups(shell: Pattern, text: str) -> Iterator[Group]:
    start = 0
    for part in text.split(","):
        yield _group(shell, part, start)
        start += len(part) + 1


def _group(shell: Pattern, text: str, start: int) -> Group:
    tokens = [Token(word.group(), start + word.start()) for word in re.finditer(r"\S+", text)]
    for token in tokens:
        if not _TOKEN.fullmatch(token.text):
            expected = "a name, a number, '...', or a name after '*'"
            shell.refuse(token, repr(token.text), expected, "Part the names of axes by spaces.")
    return Group(tuple(tokens), tokens[0].start if tokens else start + (len(text) > 1))


class Tree(NamedTuple):
    """The tensors that one group stands for: one, or the leaves of a pytree.

    Attributes:
        numbers: Their numbers among the inputs, or the outputs.
        shapes: Their shapes, of complex ones with a last axis for real and imaginary part.
        spec: The structure in which they are.
        name: What it is, for errors.
        are_complex: Which of them are complex, if any is.
    """

    numbers: tuple[int, ...]
    shapes: tuple[Shape, ...]
    spec: TreeSpec
    name: str
    are_complex: tuple[bool, ...] = ()

    def given(self, leaf: int) -> tuple[int, ...]:
        """Return the shape of a leaf as it was given."""
        shape = tuple(self.shapes[leaf])
        return shape[:-1] if self.are_complex and self.are_complex[leaf] else shape

    def as_factors(self) -> "Tree":
        """Return the same without axes of parts, which what multiplies it does not have in common."""
        shapes = tuple(map(self.given, range(len(self.shapes))))
        return self._replace(shapes=shapes, are_complex=())

    def shown(self) -> str:
        """Return the structure, leaves as stars."""
        return repr(tree_unflatten(["*"] * len(self.numbers), self.spec))

    def like(self, other: "Tree") -> "Tree | None":
        """Return the same tensors in the order of another structure, of which keys may be ordered otherwise."""
        if self.spec == other.spec or len(self.numbers) == len(other.numbers) == 1:
            return self
        try:
            order = other.spec.flatten_up_to(tree_unflatten([*range(len(self.numbers))], self.spec))
        except ValueError:
            return None
        if not all(isinstance(place, int) for place in order):
            return None
        numbers, shapes = tuple([self.numbers[n] for n in order]), tuple([self.shapes[n] for n in order])
        are_complex = tuple([self.are_complex[n] for n in order if self.are_complex])
        return Tree(numbers, shapes, other.spec, self.name, are_complex)


class Bound(NamedTuple):
    """What a pattern means for some shapes.

    Attributes:
        nests: Which of the output, given as -1, and of the slots the result is nested by, the outermost first.
        results: For every choice of a leaf of these the contractions of which it is the sum.
    """

    nests: tuple[int, ...]
    results: tuple[tuple[Contraction, ...], ...]


def bound(pattern: Pattern, output: Tree, slots: Sequence[Tree], operands: Sequence[Tree]) -> Bound:
    """Return what a pattern means.

    Args:
        pattern: The pattern, with as many groups as there are slots and operands.
        output: What is differentiated.
        slots: By what, for every slot.
        operands: What multiplies the derivative.

    Raises:
        ArgumentError: It does not fit.
    """
    for group in pattern.others[len(slots) :]:
        for token in group.tokens:
            if token.is_number:
                pattern.refuse(token, "a number in an operand", "names", "Index the operand itself.")
    return _Binding(pattern, output, slots, operands).bound()


class _Binding:
    """Gives names to the axes of all tensors of a pattern, for each choice of leaves."""

    def __init__(self, pattern: Pattern, output: Tree, slots: Sequence[Tree], operands: Sequence[Tree]):
        self._pattern, self._count = pattern, len(slots)
        self._groups = [pattern.output, *pattern.others]
        self._trees: list[Tree] = []
        for place, tree in enumerate((output, *slots, *operands)):
            self._trees.append(self._checked(place, tree))
        self._asked = {token.text for token in pattern.result.tokens}
        self._axes = _Axes(pattern)  # of what is the same for all choices
        self._shared: dict[int, tuple[Bearer, ...]] = {}
        self._same: tuple[Bearer, ...] = ()  # all operands, if they are among these

    def bound(self) -> Bound:
        kept = [place for place in range(1 + self._count) if self._is_nested(place)]
        merged = [place for place in range(1, 1 + self._count) if place not in kept and self._is_merged(place)]
        self._axes.tagged = {name for place in merged for name in self._varied_by(place)}
        self._share(merged)
        first = [place for place in kept if self._led_by(place, kept) == place]
        sizes = [len(self._trees[place].numbers) for place in first]
        free = [place for place in range(1 + self._count) if place not in (*kept, *merged)]
        results = []
        for chosen in product(*map(range, sizes)):
            of_first = dict(zip(first, chosen, strict=True))
            choice = {place: of_first[self._led_by(place, kept)] for place in kept}
            found = []
            for rest in product(*(range(len(self._trees[place].numbers)) for place in free)):
                contraction = self._contraction({**choice, **dict(zip(free, rest, strict=True))}, merged)
                found += [] if contraction is None else [contraction]
            results.append(tuple(found))
        return Bound(tuple(place - 1 for place in first), tuple(results))

    def _led_by(self, place: int, kept: Sequence[int]) -> int:
        """Return the first of the groups by which the result is nested that has the name with a star that this has."""
        owners = [self._owner(token) for token in self._groups[place].tokens if token.text[0] == "*"]
        return next((owner for owner in owners if owner is not None and owner in kept), place)

    def _is_nested(self, place: int) -> bool:
        """Tell whether the result has a part for every leaf of a group, as a sum over the leaves has not."""
        several = [token for token in self._groups[place].tokens if token.text[0] == "*"]
        return not several or any(token.text in self._asked for token in several)

    def _is_merged(self, place: int) -> bool:
        """Tell whether a slot is one direction, given by operands, so that all of its leaves are varied at once.

        What gives it multiplies one of the leaves, and so is there before any other slot is, of which it has no names.
        """
        own = {token.text for token in self._groups[place].tokens if not token.is_number}
        groups = [{token.text for token in group.tokens} for group in self._groups]
        others = set(chain(*(groups[other] for other in range(1, 1 + self._count) if other != place)))
        giving = set(chain(*(names for names in groups[1 + self._count :] if own & names)))
        return own.isdisjoint(groups[0] | others | self._asked) and giving.isdisjoint(others) and own <= giving

    def _contraction(self, choice: Mapping[int, int], merged: Sequence[int]) -> Contraction | None:
        """Return the contraction of some leaves, None if a name stands for two different ones of them."""
        leaves: dict[str, int] = {}  # of which leaf the axes are that a name with a star stands for
        for place, leaf in choice.items():
            for token in self._groups[place].tokens:
                if token.text[0] == "*" and leaves.setdefault(token.text, leaf) != leaf:
                    return None
        axes = self._axes.copy()
        taken: list[_Taken] = [(place, leaf, leaves) for place, leaf in choice.items()]
        for place in merged if not self._shared else ():
            taken += self._varied(place)
        for place in range(1 + self._count, len(self._trees)):
            if place not in self._shared:
                taken += [(place, leaf, of) for leaf, of in self._given(place, leaves, merged)]
        bearers = {**self._shared, **self._named(axes, taken)}
        slots = tuple([bearers[place] for place in range(1, 1 + self._count)])
        operands = self._operands(bearers)
        result = axes.names(self._pattern.result, leaves)
        return Contraction(bearers[0][0], slots, operands, (*result, *self._of_parts(bearers)))

    def _operands(self, bearers: Mapping[int, tuple[Bearer, ...]]) -> tuple[Bearer, ...]:
        """Return all operands; where they are the same for all choices, the very same."""
        places = range(1 + self._count, len(self._trees))
        found = self._same or tuple(chain(*(bearers[place] for place in places)))
        if self._shared.keys() >= {*places}:
            self._same = found
        return found

    def _share(self, merged: Sequence[int]) -> None:
        """Name the axes of what is the same for all choices: slots that are one direction, and what gives that alone.

        There may be hundreds of leaves, and as many choices.
        """
        names = {token.text for place in merged for token in self._groups[place].tokens}
        alone = []
        for place in range(1 + self._count, len(self._trees)) if merged else ():
            own = {token.text for token in self._groups[place].tokens}
            if own <= names:
                alone.append(place)
            elif own & names:  # it is of a choice too, which may tell for how many axes a name stands
                return
        taken: list[_Taken] = [each for place in merged for each in self._varied(place)]
        taken += [(place, leaf, of) for place in alone for leaf, of in self._given(place, {}, merged)]
        self._shared = self._named(self._axes, taken)

    def _varied(self, place: int) -> list["_Taken"]:
        """Return all leaves of a slot that is one direction."""
        names = self._varied_by(place)
        return [(place, leaf, dict.fromkeys(names, leaf)) for leaf in range(len(self._trees[place].numbers))]

    def _varied_by(self, place: int) -> list[str]:
        """Return the names with a star of a group."""
        return [token.text for token in self._groups[place].tokens if token.text[0] == "*"]

    def _named(self, axes: "_Axes", taken: Sequence["_Taken"]) -> dict[int, tuple[Bearer, ...]]:
        """Return leaves by their places, with their indices, given which leaves names with a star are of."""
        tensors = [(self._with_parts(*each), self._trees[each[0]], *each[1:]) for each in taken]
        found: dict[int, list[Bearer]] = {}
        for (place, *_), bearer in zip(taken, axes.bearers(tensors), strict=True):
            found.setdefault(place, []).append(bearer)
        return {place: tuple(bearers) for place, bearers in found.items()}

    def _with_parts(self, place: int, leaf: int, of: Mapping[str, int]) -> Group:
        """Return the group of a leaf, with a name for the axis of parts if it is a complex factor, as slots are not."""
        group, tree = self._groups[place], self._trees[place]
        if not tree.are_complex or not tree.are_complex[leaf] or 0 < place <= self._count:
            return group
        if place and self._is_like_slot(group, tree.shapes[leaf], of):
            return group
        return group._replace(tokens=(*group.tokens, Token(f"{PARTS} {place}", group.start)))

    def _is_like_slot(self, group: Group, shape: Shape, of: Mapping[str, int]) -> bool:
        """Tell whether a complex operand is like a leaf of a slot, so that its parts are those of this one.

        So it is if its name with a star takes the last axes of such a leaf, unless it has all of these and its parts.
        """
        star = group.tokens[-1] if group.tokens else None
        owner = self._owner(star) if star is not None and star.text[0] == "*" else None
        if star is None or not owner:
            return False
        slot, like = self._groups[owner].tokens, self._trees[owner]
        if slot[-1].text != star.text or not like.are_complex or not like.are_complex[of[star.text]]:
            return False
        taken = len(like.shapes[of[star.text]]) - len(slot) + 1
        is_open = any(token.is_several for token in (*group.tokens[:-1], *slot[:-1]))
        return is_open or len(shape) == len(group.tokens) - 1 + taken

    def _of_parts(self, bearers: Mapping[int, tuple[Bearer, ...]]) -> tuple[str, ...]:
        """Return the labels of the parts of complex factors, which the result has last.

        Raises:
            ArgumentError: An operand is several tensors that multiply one result, some of which are complex.
        """
        found = []
        for place in (0, *range(1 + self._count, len(self._trees))):
            name = f"{PARTS} {place}"
            kinds = {name in indices for _, indices in bearers[place]} if self._trees[place].are_complex else {False}
            if len(kinds) > 1:
                got, remedy = f"{self._trees[place].name} of real and complex tensors", "Make all of them complex."
                self._pattern.refuse(self._groups[place], got, "tensors of one kind, which are summed", remedy)
            found += [name] if True in kinds else []
        return tuple(found)

    def _given(
        self, place: int, leaves: Mapping[str, int], merged: Sequence[int]
    ) -> Iterator[tuple[int, dict[str, int]]]:
        """Yield which leaves of an operand multiply a contraction, and which leaves the names in it with a star are."""
        group, tree = self._groups[place], self._trees[place]
        starred = [token for token in group.tokens if token.text[0] == "*"]
        owners = [self._owner(token) for token in starred]
        varied = [owner for owner in owners if owner in merged]
        if varied:
            names = [token.text for token in starred]
            yield from ((leaf, {**leaves, **dict.fromkeys(names, leaf)}) for leaf in range(len(tree.numbers)))
        elif len(tree.numbers) == 1:
            yield 0, {**leaves}
        elif starred and None not in owners:
            yield leaves[starred[0].text], {**leaves}
        else:
            got = f"{tree.name} of {len(tree.numbers)} leaves"
            self._pattern.refuse(group, got, "one tensor", "Name axes after a star to pass a pytree like an argument.")

    def _checked(self, place: int, tree: Tree) -> Tree:
        """Return a tree with its leaves in the order of the one that it is like, where a name with a star stands first.

        Raises:
            ArgumentError: It has no leaves, is of another structure, or has several, and several such names.
        """
        group, remedy = self._groups[place], "Pass vectors that are pytrees like the argument."
        starred = {token.text: token for token in group.tokens if token.text[0] == "*"}
        if not tree.numbers or (len(tree.numbers) > 1 and len(starred) > 1):
            got = f"{tree.name} of {len(tree.numbers)} leaves for {len(starred)} names with a star"
            self._pattern.refuse(group, got, "one tensor, or one name with a star", remedy)
        for token in starred.values():
            owner = self._owner(token)
            if owner is not None and owner < place:
                like, found = self._trees[owner], tree.like(self._trees[owner])
                if found is None:
                    got, expected = f"{tree.name} as {tree.shown()}", f"a pytree like {like.name}, {like.shown()}"
                    self._pattern.refuse(token, got, expected, remedy)
                tree = found
        return tree

    def _owner(self, token: Token) -> int | None:
        """Return the output or the slot in which a name also stands."""
        places = range(1 + self._count)
        return next((p for p in places if any(other.text == token.text for other in self._groups[p].tokens)), None)


_Taken = tuple[int, int, Mapping[str, int]]  # a place, a leaf there, and which leaves names with a star are of


class _Axes:
    """The names of axes, and their sizes, as tensors are given.

    Args:
        pattern: The pattern.
        ranks: For how many axes each name stands, of each leaf, as far as that is known.
        sizes: The sizes of axes, likewise.
        tagged: The names, each of one slot that is several leaves at once, that a leaf without axes bears as a tag.
    """

    def __init__(
        self,
        pattern: Pattern,
        ranks: Mapping[tuple[str, int], int] = {},
        sizes: Mapping[str, int] = {},
        tagged: Collection[str] = (),
    ):
        self._pattern, self._ranks, self._sizes, self.tagged = pattern, {**ranks}, {**sizes}, tagged

    def copy(self) -> "_Axes":
        """Return what is known, for more to be added."""
        return _Axes(self._pattern, self._ranks, self._sizes, self.tagged)

    def bearers(self, tensors: Sequence[tuple[Group, Tree, int, Mapping[str, int]]]) -> list[Bearer]:
        """Return tensors by their numbers, with their indices.

        Args:
            tensors: Leaves of trees, and which leaves names with a star are of.
        """
        left = [*tensors]
        while left:
            later = [each for each in left if not self._counts(*each)]
            if len(later) == len(left):
                group, tree, leaf, _ = left[0]
                got = f"{tree.name} of shape {tree.given(leaf)}, of which several names may take any axes"
                self._pattern.refuse(group, got, "one such name that stands nowhere else", "Name the axes one by one.")
            left = later
        return [self._bearer(*each) for each in tensors]

    def _counts(self, group: Group, tree: Tree, leaf: int, leaves: Mapping[str, int]) -> bool:
        """Find out for how many axes a name stands, if that is known for all others; tell whether it is now."""
        several = [(token.text, leaves.get(token.text, 0)) for token in group.tokens if token.is_several]
        unknown = {key for key in several if key not in self._ranks}
        if len(unknown) > 1:
            return False
        rank = len(tree.shapes[leaf])
        single = len(group.tokens) - len(several)
        rest = rank - single - sum(self._ranks.get(key, 0) for key in several)
        times = sum(key in unknown for key in several)
        if rest < 0 or (rest % times if times else rest):
            written = tuple([token for token in group.tokens if not token.text.startswith(PARTS)])
            names = " ".join(token.text for token in written)
            beside = len(group.tokens) - len(written)
            shape = tree.shapes[leaf][: rank - beside]
            of_parts = " by real and imaginary part" if len(shape) > len(tree.given(leaf)) else ""
            letters = [letter for token in written for letter in (token.text if token.text.isalpha() else [token.text])]
            are_joined = len(letters) == rank - beside and len(letters) > len(written)
            apart = f"Names are words, with spaces between: {' '.join(letters)!r}. " if are_joined else ""
            self._pattern.refuse(
                group._replace(tokens=written),
                f"{tree.name} of shape {tuple(shape)}{of_parts}, which has {plural(rank - beside, 'axis')}",
                f"{'at least ' if times else ''}{plural(rank - rest - beside, 'axis')} for {names!r}",
                f"{apart}A group names each axis of its tensor; '...' stands for any that all have in common. The last "
                "groups are of the operands, as many as are given by operands=(...).",
            )
        self._ranks.update(dict.fromkeys(unknown, rest // max(1, times)))
        return True

    def _bearer(self, group: Group, tree: Tree, leaf: int, leaves: Mapping[str, int]) -> Bearer:
        sizes = iter(tree.shapes[leaf])
        indices: list[Index] = []
        for token in group.tokens:
            names = self._of(token, leaves)
            if not names and token.text in self.tagged:
                indices.append(tag(f"{token.text}.{leaves[token.text]}"))
            for name in names:
                size = next(sizes)
                self._check(token, name, size, tree)
                indices.append(int(name) if token.is_number else name)
        return tree.numbers[leaf], tuple(indices)

    def _check(self, token: Token, name: str, size: int, tree: Tree) -> None:
        if token.is_number and int(name) >= size:
            expected = f"a place from 0 to {size - 1} of that axis of {tree.name}"
            self._pattern.refuse(token, name, expected, "Places are counted from 0.")
        if not token.is_number and self._sizes.setdefault(name, size) != size:
            expected = f"{self._sizes[name]}, the size of {token.text} where it stands before"
            self._pattern.refuse(token, f"size {size} in {tree.name}", expected, "Give other axes other names.")

    def _of(self, token: Token, leaves: Mapping[str, int]) -> list[str]:
        """Return the names of the axes that a token stands for."""
        if not token.is_several:
            return [token.text]
        leaf = leaves.get(token.text, 0)
        return [f"{token.text}.{leaf}.{number}" for number in range(self._ranks[token.text, leaf])]

    def names(self, group: Group, leaves: Mapping[str, int]) -> tuple[str, ...]:
        """Return the names of the axes of the result."""
        return tuple(chain(*(self._of(token, leaves) for token in group.tokens)))
