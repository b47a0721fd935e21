"""The comparison of chosen blocks of a derivative with those of the whole derivative."""

from collections.abc import Sequence

from hofunc.chosen import Which, checked
from hofunc.errors import HodcheckError
from hofunc.internals import tree_leaves
from hofunc.plan.wanted import blocks_of
from hofunc.testing.entries import largest, worst
from hofunc.testing.judgement import Tolerances
from hofunc.testing.oracles import Leaves, Subject
from hofunc.transforms import hod


def check_blocks(subject: Subject, order: int, which: Which, dense: Leaves, tolerances: Tolerances) -> None:
    """Compare the blocks that are asked for with those of the derivative, which has been checked.

    Args:
        subject: The function and the point.
        order: The order.
        which: The blocks.
        dense: The derivative.
        tolerances: How far off an entry may be.

    Raises:
        HodcheckError: An entry is off.
        ArgumentError: The blocks do not fit.
    """
    choice = checked("hodcheck", which, order, all_orders=False, orders_below=False)
    if choice is None:
        return
    arguments, inputs = subject.arguments, len(subject.inputs)
    blocks = [*blocks_of(choice.asked(arguments).wanted, order, inputs)]
    args, _ = arguments.joined(arguments.leaves, arguments.rest)
    transform = hod(subject.f, order, subject.argnums, strategy=subject.strategy, **which._asdict())
    found = [leaf.detach().double() for leaf in tree_leaves(transform(*args))]
    places = [_place((output, *block), inputs) for output in range(len(subject.outputs)) for block in blocks]
    expected = [dense[place] for place in places]
    if [leaf.shape for leaf in found] != [leaf.shape for leaf in expected]:
        _refuse("blocks", f"{len(found)} tensors", f"{len(expected)} tensors, of the shapes of blocks")
    off = worst(found, expected, tolerances.allowed([largest([leaf]) for leaf in expected]))
    if off is not None:
        what = f"{subject.name(places[off.tensor], off.index, order)} of the blocks asked for is {off}"
        _refuse(what, f"{off.got:.17g}", f"{off.expected:.17g} by the whole derivative")


def _place(block: Sequence[int], inputs: int) -> int:
    """Return the place of a block among all, given its output and the inputs of its slots."""
    place = 0
    for number in block:
        place = place * inputs + number
    return place


def _refuse(what: str, got: str, expected: str) -> None:
    remedy = "This is a bug of hofunc: please report it, with f, args and blocks."
    raise HodcheckError(f"hodcheck: {what}", got=got, expected=expected, remedy=remedy)
