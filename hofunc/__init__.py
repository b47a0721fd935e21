"""Exact higher-order derivatives of torch functions, without nesting first-order differentiation."""

from hofunc import releases as _releases  # first, since an old torch has not all that is read of it
from hofunc.graph.uncollected import paused as _paused

with _paused():  # what would be collected meanwhile is torch's
    with _releases.reading():
        from hofunc import rules as _rules  # enters the rules of all known ops

    from hofunc.blockwise import Blocks
    from hofunc.callable_plan import Plan, load_plan
    from hofunc.contracted import einsum
    from hofunc.derivative import Derivative
    from hofunc.draw.drawing import Drawing
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
    from hofunc.hooks import hooked
    from hofunc.jit import Jitted, jit
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
    from hofunc.options import options
    from hofunc.run.pieces import Piece
    from hofunc.stream import Stream
    from hofunc.structured.packed import unpack
    from hofunc.taps import tap
    from hofunc.testing.check import hodcheck
    from hofunc.transforms import derivatives, hessian, hod, jacobian

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

del _paused, _releases, _rules
