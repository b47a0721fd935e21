"""Calls of a transform that repeat an earlier one, of which only is asked what may differ.

NOTE [repeat]: most calls take arguments that are nested, and lie in memory, as those of a call before, and the function
makes the calls of torch's functions that it made then, see NOTE [calls] in `hofunc.graph.calls`. All that is found out
about such arguments on the way to a result, and what is wanted of the graph, is as it was: it is kept by the code of
the function and by what tells the transform from others. What may differ is asked every time: whether the calls are the
same, whether there is a plan, which is looked up as ever, and whether values decide as they did. Where anything is not
as it was, the call goes the way of a first one, which finds out all anew.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from hofunc.arguments import Arguments
from hofunc.graph.identity import PLAIN, are_like
from hofunc.graph.recording import Recording
from hofunc.graph.trail import Trail
from hofunc.internals import TreeSpec, form_check
from hofunc.plan.wanted import Wanted
from hofunc.trees import tree_flatten

MOST = 8  # that are kept of functions with one code


class Repeat(NamedTuple):
    """A call, as far as another one that repeats it needs not find out again.

    Attributes:
        told: What tells the transform from others.
        arity: How many positional ones there were.
        keywords: Those that were passed by keyword and are inputs.
        absent: Those that might have been.
        specs: The structure of each argument that is an input.
        arguments: The arguments, without the tensors.
        check: Tells whether as many tensors as there are inputs are like these, see `hofunc.internals.form_check`.
        trail: What was recorded.
        spec: The structure of all that was recorded of what the function returned.
        outputs: How many of its tensors are differentiated.
        wanted: What was wanted of these.
    """

    told: Hashable
    arity: int
    keywords: tuple[str, ...]
    absent: tuple[str, ...]
    specs: tuple[TreeSpec, ...]
    arguments: Arguments
    check: Callable[..., bool]
    trail: Trail
    spec: TreeSpec
    outputs: int
    wanted: Wanted

    def taken(self, args: tuple, kwargs: dict) -> Arguments | None:
        """Take the arguments of a call apart; None if inputs are not like those of the call that it is to repeat."""
        if len(args) != self.arity or (kwargs and not kwargs.keys().isdisjoint(self.absent)):
            return None
        places: Any = self.arguments.variables
        trees = [*(args[place] for place in places), *map(kwargs.get, self.keywords)]  # None is no input
        leaves: list[Any] = []
        for tree, expected in zip(trees, self.specs, strict=True):
            flat, spec = tree_flatten(tree)
            if spec is not expected and spec != expected:
                return None
            leaves += flat
        if not PLAIN.issuperset(map(type, leaves)) or not are_like(self.check, leaves):
            return None
        rest = [None if place in places else arg for place, arg in enumerate(args)]
        form = self.arguments
        return Arguments(leaves, form.are_complex, form.spec, (tuple(rest), kwargs), *form[4:])  # sooner than _replace


_repeats: WeakKeyDictionary[Any, tuple[Repeat, ...]] = WeakKeyDictionary()  # by the sources of functions


def repeated(source: Any, told: Hashable, args: tuple, kwargs: dict) -> tuple[Repeat, Arguments] | None:
    """Return what a call repeats, and its arguments; None if there is nothing like it.

    Args:
        source: What `hofunc.graph.asking.source_of` returns for the function.
        told: What tells the transform from others.
        args: The positional arguments.
        kwargs: The keyword arguments.
    """
    known = _repeats.get(source, ())
    for each in known:
        if each.told == told and each.trail.calls is not None:
            arguments = each.taken(args, kwargs)
            if arguments is not None:
                if each is not known[0]:
                    _repeats[source] = (each, *(other for other in known if other is not each))
                return each, arguments
    return None


def keep(
    source: Any,
    told: Hashable,
    names: Sequence[str],
    kwargs: Mapping[str, Any],
    arguments: Arguments,
    recording: Recording,
    outputs: int,
    wanted: Wanted,
) -> None:
    """Keep a call for others that repeat it, if they can.

    Args:
        source: As of `repeated`, as is what tells the transform from others.
        told: See there.
        names: Those of keyword arguments that may be inputs.
        kwargs: The keyword arguments.
        arguments: The arguments.
        recording: What was recorded.
        outputs: How many of the tensors that were returned are differentiated.
        wanted: What was wanted of these.
    """
    trail, leaves = recording.trail, arguments.leaves
    is_plain = trail.are_known and recording.wrappers is None and not arguments.taps and leaves
    are_several = len({*map(id, leaves)}) == len(leaves)  # of which alone it can be told, see `form_check`
    if trail.calls is None or not (is_plain and are_several) or True in arguments.are_complex:
        return
    if not trail.calls.start_from([leaf.stride() for leaf in leaves]):  # of others it is recorded as ever
        return
    keywords = tuple([name for name in names if name in kwargs])
    absent = tuple([name for name in names if name not in kwargs])
    specs = *arguments.specs, *(tree_flatten(kwargs[keyword])[1] for keyword in keywords)
    form = arguments._replace(leaves=[], rest=((), {}))
    arity, check, spec = len(arguments.rest[0]), form_check(leaves), recording.spec
    call = told, arity, keywords, absent, specs
    others = (each for each in _repeats.get(source, ()) if each.trail is not trail or each[: len(call)] != call)
    made = Repeat(*call, form, check, trail, spec, outputs, wanted)
    _repeats[source] = (made, *others)[:MOST]
