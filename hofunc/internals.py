"""What hofunc reads of what torch keeps to itself, each under a name of its own: no other file of hofunc does.

Any release may change what stands here, so tests/test_internals.py tries every fact on the torch that is installed,
and only this file tells releases apart. Ops are named where their rules are; only one that not all releases have is
here as well.
"""

import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from threading import local
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction, DisableTorchFunctionSubclass, DispatchKey, TensorBase
from torch._C import _autocast_supported_devices as autocast_devices
from torch._C import _current_graph_task_id as backward_pass
from torch._C import _DisableAutocast as DisableAutocast
from torch._C import _disabled_torch_function_impl as no_torch_function
from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled
from torch._C import _is_fwd_grad_enabled as is_forward_mode_on
from torch._C import _is_torch_function_enabled as is_torch_function_enabled
from torch._C import _len_torch_dispatch_stack as count_dispatch_modes
from torch._C import _len_torch_function_stack as count_function_modes
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._C._dynamo.guards import TensorGuards as _TensorGuards
from torch._C._functorch import _add_batch_dim as add_batch_dim
from torch._C._functorch import _vmap_decrement_nesting as leave_vmap
from torch._C._functorch import _vmap_increment_nesting as enter_vmap
from torch._C._functorch import (
    get_inplace_requires_grad_allowed,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    maybe_current_level,
    maybe_get_bdim,
    maybe_get_level,
    peek_interpreter_stack,
    set_inplace_requires_grad_allowed,
    unwrap_if_dead,
)
from torch._decomp import decomposition_table, global_decomposition_table
from torch._functorch import eager_transforms
from torch._functorch.pyfunctorch import (
    VmapInterpreter,
    retrieve_all_functorch_interpreters,
    retrieve_current_functorch_interpreter,
    temporarily_clear_interpreter_stack,
)
from torch._higher_order_ops import utils as operator_utils
from torch._higher_order_ops.associative_scan import generic_associative_scan
from torch._higher_order_ops.flex_attention import math_attention
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.amp.autocast_mode import _cast as cast_as_autocast
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction, _SingleLevelFunction
from torch.compiler import is_dynamo_compiling
from torch.nn.modules._functions import BackwardHookFunction
from torch.nn.modules.module import _WrappedHook as WrappedHook
from torch.overrides import _get_current_function_mode as current_function_mode
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.overrides import _pop_mode_temporarily as pop_function_mode_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode as current_dispatch_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes
from torch.utils._python_dispatch import _pop_mode_temporarily as pop_mode_temporarily
from torch.utils._pytree import (
    SUPPORTED_NODES,
    TreeSpec,
    is_namedtuple_class,
    keystr,
    register_pytree_node,
    tree_flatten,
    tree_flatten_with_path,
    tree_is_leaf,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
)
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.hooks import BackwardHook, RemovableHandle

from hofunc.releases import RELEASE

__all__ = [
    "CHOLESKY",
    "MAKE_SUBCLASS",
    "POLAR",
    "SQUARE_ROOT",
    "TIES_ARE_SHARED",
    "BackwardHookFunction",
    "Definition",
    "DisableAutocast",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "DispatchKey",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "TorchDispatchMode",
    "TreeSpec",
    "VmapInterpreter",
    "WrappedHook",
    "add_batch_dim",
    "autocast_devices",
    "backward_pass",
    "base_of",
    "before_swaps",
    "below_autograd",
    "cast_as_autocast",
    "compilable_in_child",
    "count_dispatch_modes",
    "count_function_modes",
    "count_handles",
    "current_dispatch_mode",
    "current_function_mode",
    "decomposition_table",
    "default_collate_fn_map",
    "disable_current_modes",
    "dispatch_modes",
    "end_graph_before",
    "enter_vmap",
    "find_cpp_compiler",
    "form_check",
    "function_modes",
    "function_refused",
    "function_running",
    "generic_associative_scan",
    "get_inplace_requires_grad_allowed",
    "get_unwrapped",
    "getter_of",
    "has_definition",
    "has_forward_level",
    "has_setup_context",
    "has_weak_reference",
    "hides_conjugation",
    "hides_ops",
    "hooks_of",
    "identity_of",
    "is_any_autocast_enabled",
    "is_autograd_view",
    "is_batchedtensor",
    "is_cut_view",
    "is_forward_mode_on",
    "is_functorch_wrapped_tensor",
    "is_legacy_batchedtensor",
    "is_namedtuple_class",
    "is_torch_function",
    "is_torch_function_enabled",
    "joined_node",
    "kernel_of",
    "keystr",
    "known_to_compiler",
    "leave_vmap",
    "log_softmax",
    "math_attention",
    "maybe_current_level",
    "maybe_get_bdim",
    "maybe_get_level",
    "no_torch_function",
    "operator_utils",
    "peek_interpreter_stack",
    "pop_function_mode_temporarily",
    "pop_mode_temporarily",
    "push_tangents_of",
    "pytree_classes",
    "register_pytree_node",
    "retrieve_all_functorch_interpreters",
    "retrieve_current_functorch_interpreter",
    "schema_of",
    "set_data",
    "set_inplace_requires_grad_allowed",
    "shown_conjugation",
    "skip_by_compiler",
    "softmax",
    "softmax_back",
    "tells_in_python",
    "temporarily_clear_interpreter_stack",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_is_leaf",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
    "unwrap_if_dead",
    "watch_functions",
    "without_views",
]


# Tensors. What recording reads at every op is read by functions in C, which take as long as the attribute itself.
is_autograd_view: Callable[[Tensor], bool] = Tensor._is_view
base_of: Callable[[Tensor], Tensor | None] = attrgetter("_base")  # the tensor of which it is such a view
hooks_of: Callable[[Tensor], dict[int, Any] | None] = attrgetter("_backward_hooks")
# Ops themselves, called without a search for their kernels from Python.
log_softmax = torch._log_softmax
softmax = torch._softmax
softmax_back = torch._softmax_backward_data
MAKE_SUBCLASS = Tensor._make_subclass.__name__  # of what makes a tensor of a subclass past all ops
set_data = vars(TensorBase)["data"].__set__  # what a mode of torch functions sees when a tensor is given other data

# Of a storage or a random generator, what tells it from others, whichever Python object stands for it.
identity_of: Callable[[Any], int] = attrgetter("_cdata")
schema_of: Callable[[OpOverload], torch.FunctionSchema] = attrgetter("_schema")
kernel_of: Callable[[OpOverload], Callable[..., Any]] = attrgetter("_op")  # what a call of it calls


def _op_if_there(name: str) -> tuple[OpOverload, ...]:
    """Return an op that some releases of torch have and others have not, as what to loop over."""
    packet = getattr(torch.ops.aten, name, None)
    return () if packet is None else (packet.default,)


CHOLESKY = _op_if_there("cholesky")  # until torch 2.13
POLAR = _op_if_there("linalg_polar")  # since torch 2.14
SQUARE_ROOT = _op_if_there("linalg_matrix_sqrth")  # since torch 2.14

# Where numbers are equal, clamp, fmax and fmin share their slope out equally, as maximum and minimum always did, and a
# bound that is a number keeps its part; before torch 2.14 all of it belonged to the first one, for clamp to the tensor.
TIES_ARE_SHARED = RELEASE >= (2, 14)


def is_torch_function(value: Any) -> bool:
    """Tell whether something is a function of torch that is written in C++, as torch.add."""
    is_builtin = isinstance(value, BuiltinFunctionType)
    return is_builtin and getattr(torch._C._VariableFunctions, value.__name__, None) is value


def pytree_classes() -> list[Any]:
    """Return the classes that pytrees are made of; what makes the classes of named tuples stands for these."""
    return [*SUPPORTED_NODES]


def joined_node(kind: type, parts: Sequence[Any], context: Any) -> Any:
    """Return a container of a kind that is a node of pytrees, with these things in it."""
    return SUPPORTED_NODES[kind].unflatten_fn(parts, context)


def getter_of(attribute: str) -> Callable[[Tensor], Any]:
    """Return what a mode of torch functions sees when an attribute of a tensor is read."""
    return vars(TensorBase)[attribute].__get__


def is_cut_view(tensor: Tensor) -> bool:
    """Tell whether a tensor became a view where gradients were off, so that no derivative goes through it."""
    autograd = torch._C._autograd
    return is_autograd_view(tensor) and autograd._get_creation_meta(tensor) == autograd.CreationMeta.NO_GRAD_MODE


def below_autograd() -> AbstractContextManager:
    """Let what is computed within, in a dispatch mode, pass through autograd again."""
    return torch._C._SetExcludeDispatchKeyGuard(DispatchKey.AutogradFunctionality, False)


@contextmanager
def without_views() -> Iterator[None]:
    """Let what is computed within have no history, and be no view to autograd of what it shares memory with."""
    exclude = torch._C._SetExcludeDispatchKeyGuard
    with exclude(DispatchKey.AutogradFunctionality, True), exclude(DispatchKey.ADInplaceOrView, True):
        yield


def hides_conjugation() -> bool:
    """Tell whether kernels that are called now take a tensor that is conjugated lazily for one that is not."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(DispatchKey.Conjugate)


def shown_conjugation() -> AbstractContextManager:
    """Let kernels that conjugate lazily inside compute what they are meant to in a dispatch mode, too."""
    return torch._C._SetExcludeDispatchKeyGuard(DispatchKey.Conjugate, False)


def hides_ops() -> bool:
    """Tell whether ops that are called now reach no dispatch mode."""
    return torch._C._dispatch_tls_is_dispatch_key_excluded(DispatchKey.Python)


def has_forward_level() -> bool:
    """Tell whether tensors may have tangents of torch.autograd.forward_ad."""
    return forward_ad._current_level >= 0


def count_handles() -> int:
    """Return a number that is greater after any hook was registered that returns a handle."""
    return RemovableHandle.next_id


@dataclass(frozen=True)
class Definition:
    """How torch defines an op by other ops; a mode of functions would take it for a call of the op itself."""

    op: OpOverload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the op by others."""
        with DisableTorchFunction():
            return self.op.decompose(*args, **kwargs)


def has_definition(op: OpOverload) -> bool:
    """Tell whether torch defines an op by other ops."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def tells_in_python(op: Any) -> bool:
    """Tell whether what an op does to meta tensors may be a kernel in Python, which may import torch's compiler."""
    return any(op in table for table in global_decomposition_table.values())


class _DefaultSetup(staticmethod):
    """The setup_context of Functions that have none of their own, which notes of what class it was asked last."""

    def __get__(self, instance: Any, owner: type | None = None) -> Callable:
        if owner is not None and owner is not _SingleLevelFunction:
            _asked.function = weakref.ref(owner)
        return super().__get__(instance, owner)


_asked = local()
_SingleLevelFunction.setup_context = _DefaultSetup(_SingleLevelFunction.setup_context)  # type: ignore[method-assign]


def function_running() -> type | None:
    """Return the custom Function of which the forward is running, the innermost of several; None outside of all.

    There torch turns forward mode off, as nothing else does but inference mode, and that is quick to ask. Which one it
    is stands in the frames. Where it does not, as where torch itself makes views of inputs that a forward returned, it
    is the base class, or that of module hooks if their caller is there.
    """
    if is_forward_mode_on():
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _forwards:
            context = next(iter(frame.f_locals.values()), None)  # an inherited forward is that of several classes
            return getattr(type(context), "_forward_cls", _forwards[frame.f_code]())
        frame = frame.f_back
    return None if torch.is_inference_mode_enabled() else torch.autograd.Function


# The custom Functions that were applied, by the codes of their forwards: no other one may be running.
_forwards: dict[CodeType, Callable[[], Any]] = {BackwardHook._apply_on_tensors.__code__: lambda: BackwardHookFunction}
_applied: weakref.WeakKeyDictionary[type, tuple[Any, list[CodeType]]] = weakref.WeakKeyDictionary()  # and the latter
_watching: list[Callable[[type], None]] = []


def watch_functions(note: Callable[[type], None]) -> None:
    """Have a function called with every custom Function that is applied, before its forward is looked up and runs."""
    _watching.append(note)


def _made(context: Any) -> None:
    """Take note of a Function that is applied: each application makes a context."""
    function = type(context)._forward_cls
    for note in _watching:
        note(function)
    known, forward = _applied.get(function), function.forward
    if known is None or known[0]() is not forward:
        known = _applied[function] = weakref.ref(forward), _codes(forward)
    for code in known[1]:
        _forwards[code] = weakref.ref(function)


type.__setattr__(BackwardCFunction, "__init__", _made)


def function_refused(error: RuntimeError) -> type | None:
    """Return the custom Function that torch.func's transforms do not take, if an error says that; else None.

    The error does not name it, but that it has no setup_context torch has found out by asking for that.
    """
    refused = "autograd.Function with functorch transforms" in str(error) and "setup_context" in str(error)
    return _asked.function() if refused else None


def has_setup_context(function: Any) -> bool:
    """Tell whether a custom Function is of the form that torch.func's transforms take."""
    return function.setup_context is not _SingleLevelFunction.setup_context


def _codes(forward: Any) -> list[CodeType]:
    """Return the code of a Function's forward, and that of what decorates it."""
    return [each.__code__ for each in (forward, inspect.unwrap(forward)) if isinstance(each, FunctionType)]


def before_swaps(check: Callable[[Tensor, Tensor], None]) -> None:
    """Have a function called with any two tensors before they exchange what they hold."""
    swap = torch._C._swap_tensor_impl

    def checked(t1: Tensor, t2: Tensor) -> None:
        check(t1, t2)
        swap(t1, t2)

    torch._C._swap_tensor_impl = checked


def push_tangents_of(chosen: Callable[[], bool]) -> None:
    """Have linear functions of `torch.func.linearize` push tangents through what was linearised, if it says so.

    Else they are what torch traces of that and folds, by two steps which it takes one after the other. The compiler is
    not asked what it says: it does neither step, and knows how to push tangents.
    """
    take = eager_transforms.lazy_dynamo_disallow

    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda _: lambda *tangents: tree_leaves(function(tangents))

    def taken(step: Callable[..., Any]) -> Callable[..., Any]:
        if not is_dynamo_compiling() and not chosen():
            return take(step)
        return traced if step.__name__ == "make_fx" else lambda linear: linear

    eager_transforms.lazy_dynamo_disallow = taken  # type: ignore[assignment]


def has_weak_reference(error: RuntimeError) -> bool:
    """Tell whether an error is that two tensors cannot exchange what they hold, as one has a weak reference."""
    return str(error).startswith("Cannot swap") and "weakref" in str(error)


def form_check(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """Return what tells, in one call, that tensors surely have the shape, strides, dtype and device of these.

    It says no where something else differs as well, as whether they require gradients, and where one is there twice. It
    is not to be asked of nested tensors, of which torch ends the process.

    Args:
        tensors: Plain ones.
    """
    sizes: Any = [[*tensor.shape] for tensor in tensors]
    strides: Any = [[*tensor.stride()] for tensor in tensors]
    return _TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def compiling() -> AbstractContextManager[Any]:
    """Return the lock that torch.compile holds as it compiles or traces, of which it does one at a time."""
    from torch._dynamo.convert_frame import compile_lock  # noqa: PLC0415 - slow to import

    return compile_lock


def compilable_in_child() -> None:
    """Free the lock to compile in a forked process, if it was held by a thread that there is not in it."""
    module: Any = sys.modules.get("torch._dynamo.convert_frame")
    if module is not None and not module.compile_lock._is_owned():
        module.compile_lock._at_fork_reinit()


# Returns how often a tensor, or what shares its memory, was written to; it must not be an inference tensor.
times_written: Callable[[Tensor], int] = attrgetter("_version")


def skip_by_compiler(code: CodeType) -> None:
    """Keep torch.compile from a piece of code and from all that it calls."""
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


def end_graph_before(function: Callable[..., Any]) -> None:
    """Have torch.compile end its graph where a function is called."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]


def known_to_compiler(function: Callable[[], Any]) -> Callable[[], Any]:
    """Let torch.compile call a function where it meets a call of it, and take what that returns for a constant."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def find_cpp_compiler() -> str:
    """Return the C++ compiler that inductor uses; raises RuntimeError if there is none."""
    from torch._inductor.cpp_builder import get_cpp_compiler  # noqa: PLC0415 - slow to import

    return get_cpp_compiler()
