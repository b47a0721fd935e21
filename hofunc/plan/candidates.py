"""Strategies of which one is to be taken, and what each of them is estimated to take."""

from collections.abc import Mapping, Sequence

from hofunc.plan.blueprint import Limits
from hofunc.plan.entries import Extents
from hofunc.plan.estimate import Estimate, estimates
from hofunc.plan.program import device_of
from hofunc.plan.strategies import is_directional, strategies_of
from hofunc.plan.wanted import Contractions, Wanted, highest
from hofunc.rules.lower import Lowered
from hofunc.rules.settle import Settlings


def candidates(settlings: Settlings, wanted: Wanted, *, looks: bool = False) -> Sequence[str]:
    """Return the strategies of which the fastest is to be taken.

    Those by directions multiply derivatives by directions, of which a mask before may have left zeros. Where the former
    are infinite or nan, as torch lets them be since its own masks come last, that is nan; so only those are taken whose
    masks come last too, if there is a singularity behind a mask where nothing need be constant, unless somebody looks.
    """
    if not looks and settlings.of(masks_come_last=True).exposed:
        return tuple(name for name in strategies_of(wanted) if not is_directional(wanted, name))
    left_out = {*["mixed"] * (highest(wanted) == 1), *["each"] * (isinstance(wanted, Contractions) and wanted.is_one)}
    return tuple(name for name in strategies_of(wanted) if name not in left_out)


def estimated(
    extents: Extents,
    settlings: Settlings,
    wanted: Wanted,
    *,
    compact: bool = False,
    joins: bool = False,
    looks: bool = False,
) -> dict[str, Estimate]:
    """Return what the strategies take of which one is to be taken, the one that should run fastest first."""
    names = candidates(settlings, wanted, looks=looks)
    joins = joins and (settlings.are_finite or looks)
    return in_order(estimates(extents, wanted, names, compact=compact, joins=joins))


def are_looked_at(lowered: Lowered, *, compact: bool, limits: Limits) -> bool:
    """Tell whether results may be looked at: they are dense, nobody counts memory or has to wait for a device."""
    return not compact and limits == Limits() and device_of(lowered.graph).type == "cpu"


def in_order(estimates: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Return estimates, that of the strategy first that should run fastest."""
    return dict(sorted(estimates.items(), key=lambda item: item[1].run))
