"""Exact higher-order derivatives of torch functions, without nesting first-order differentiation."""

from importlib import import_module as _import
from sys import modules as _modules
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from hofunc import releases as _releases  # first, since an old torch has not all that is read of it
from hofunc.graph.uncollected import kept as _kept

with _kept():  # what would be collected meanwhile is torch's
    with _releases.reading():
        from hofunc import rules as _rules  # enters the rules of all known ops

    from hofunc.blockwise import Blocks
    from hofunc.derivative import Derivative
    from hofunc.errors import (
        AnomalyError,
        ArgumentError,
        BranchError,
        CompilerError,
        FallbackWarning,
        GoldenError,
        HodcheckError,
        HofuncError,
        InternalError,
        MutationError,
        OptionError,
        PlanFileError,
        PlanMismatchError,
        PlanningWarning,
        UnsupportedOpError,
        UntestedTorchWarning,
        UntracedError,
        VersionError,
    )
    from hofunc.graph.lines import detect_anomaly
    from hofunc.options import options
    from hofunc.run.pieces import Piece
    from hofunc.stream import Stream
    from hofunc.structured.packed import unpack
    from hofunc.taps import tap
    from hofunc.transforms import derivatives, hessian, hod, jacobian

if _TYPE_CHECKING:
    from hofunc.callable_plan import Plan, load_plan
    from hofunc.contracted import einsum
    from hofunc.draw.drawing import Drawing
    from hofunc.hooks import hooked
    from hofunc.jitted import Jitted, jit
    from hofunc.operators.coordinates import (
        biharmonic,
        curl,
        divergence,
        gradient,
        hessian_diagonal,
        laplacian,
        partial,
    )
    from hofunc.operators.gauss_newton import ggnvp
    from hofunc.operators.products import directional, hvp, jvp, vhp, vjp
    from hofunc.operators.taylor import jet
    from hofunc.testing.check import hodcheck

_MODULES = {  # which are read when one of their names is asked for
    "hofunc.callable_plan": ("Plan", "load_plan"),
    "hofunc.contracted": ("einsum",),
    "hofunc.draw.drawing": ("Drawing",),
    "hofunc.hooks": ("hooked",),
    "hofunc.jitted": ("Jitted", "jit"),
    "hofunc.operators.coordinates": (
        "biharmonic",
        "curl",
        "divergence",
        "gradient",
        "hessian_diagonal",
        "laplacian",
        "partial",
    ),
    "hofunc.operators.gauss_newton": ("ggnvp",),
    "hofunc.operators.products": ("directional", "hvp", "jvp", "vhp", "vjp"),
    "hofunc.operators.taylor": ("jet",),
    "hofunc.testing.check": ("hodcheck",),
}
_LATE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> _Any:
    if name not in _LATE:
        error = f"module 'hofunc' has no attribute {name!r}"
        raise AttributeError(error, name=name, obj=_modules[__name__])  # by which Python finds the nearest name
    return globals().setdefault(name, getattr(_import(_LATE[name]), name))


def __dir__() -> list[str]:
    return [*{**globals(), **_LATE}]


__version__ = _releases.VERSION

__all__ = [
    "AnomalyError",
    "ArgumentError",
    "Blocks",
    "BranchError",
    "CompilerError",
    "Derivative",
    "Drawing",
    "FallbackWarning",
    "GoldenError",
    "HodcheckError",
    "HofuncError",
    "InternalError",
    "Jitted",
    "MutationError",
    "OptionError",
    "Piece",
    "Plan",
    "PlanFileError",
    "PlanMismatchError",
    "PlanningWarning",
    "Stream",
    "UnsupportedOpError",
    "UntestedTorchWarning",
    "UntracedError",
    "VersionError",
    "biharmonic",
    "curl",
    "derivatives",
    "detect_anomaly",
    "directional",
    "divergence",
    "einsum",
    "ggnvp",
    "gradient",
    "hessian",
    "hessian_diagonal",
    "hod",
    "hodcheck",
    "hooked",
    "hvp",
    "jacobian",
    "jet",
    "jit",
    "jvp",
    "laplacian",
    "load_plan",
    "options",
    "partial",
    "tap",
    "unpack",
    "vhp",
    "vjp",
]

del _kept, _releases, _rules
