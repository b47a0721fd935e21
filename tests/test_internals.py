"""What hofunc reads of what torch keeps to itself: every fact, on the torch that is installed."""

import ast
import copy
import inspect
import re
import shutil
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from operator import getitem
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

import hofunc
from hofunc import internals
from hofunc.graph.objects import Witness

aten = torch.ops.aten
KEPT = re.compile(r"\._(?!_)")
SOURCES = sorted(Path(internals.__file__).parent.rglob("*.py"))


class Ops(internals.TorchDispatchMode):
    """Notes the ops that arrive, and whatever a function says of each."""

    def __init__(self, note: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.ops: list[Any] = []
        self.notes: list[Any] = []
        self._note = note

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.ops.append(func)
        self.notes.append(self._note())
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Notes the torch functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.called.append(func)
        return func(*args, **(kwargs or {}))


# That there is no other file which reads such things.


def kept_by_torch(path: Path) -> Iterator[str]:
    """Yield what a file reads of torch that is not public: modules, names in modules, attributes of tensors and ops."""
    attributes = {"_base", "_is_view", "_backward_hooks", "_cdata", "_schema", "_version", "_make_subclass", "next_id"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("torch._"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from filter(KEPT.search, names)
        elif isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            is_op = text.removeprefix("torch.ops.").startswith(("aten.", "mkldnn."))
            if node.attr in attributes or (text.startswith(("torch.", "Tensor.", "forward_ad.")) and KEPT.search(text)):
                yield from () if is_op else (text,)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SOURCES[0].parent)))
def test_no_other_file_reads_what_torch_keeps_to_itself(path: Path) -> None:
    found = {*kept_by_torch(path)}
    importing = {"internals_buffers", "internals_compiler", "internals_files", "internals_products"}
    importing |= {
        "internals_inference",
        "internals_loops",
        "internals_scatters",
        "internals_strides",
        "internals_types",
    }  # the compiler
    assert bool(found) == (
        path.stem in {"internals", "internals_saving", "internals_scripts", "internals_settings", *importing}
    ), found


def test_every_fact_is_used_and_tested() -> None:
    here = Path(__file__).read_text()
    others = "\n".join(path.read_text() for path in SOURCES if path.name != "internals.py")
    for name in internals.__all__:
        assert f"internals.{name}" in here, f"{name} has no test"
        assert name in others, f"{name} is not used"


# Tensors.


def test_views_as_autograd_knows_them() -> None:
    x = torch.ones(3)
    with torch.no_grad():
        cut = x[:2]
    view = x[1:]
    assert [*map(internals.is_autograd_view, (x, view, cut, x.clone()))] == [False, True, True, False]
    assert internals.base_of(view) is x
    assert internals.base_of(x) is None
    assert [*map(internals.is_cut_view, (x, view, cut))] == [False, False, True]


def test_hooks_of_a_tensor() -> None:
    x, before = torch.ones(3, requires_grad=True), internals.count_handles()
    assert not internals.hooks_of(x)
    handle = x.register_hook(torch.neg)
    assert [*(internals.hooks_of(x) or {}).values()] == [torch.neg]
    assert internals.count_handles() > before
    handle.remove()
    assert not internals.hooks_of(x)


def of_the_step(x: Tensor, hook: Callable) -> Any:
    """Register a hook of a step of autograd."""
    return get_gradient_edge(x * 1).node.register_prehook(hook)


@pytest.mark.parametrize("register", [Tensor.register_hook, of_the_step])
def test_every_hook_counts(register: Callable) -> None:
    x, before = torch.ones(3, requires_grad=True), internals.count_handles()
    handle = register(x, torch.neg)
    assert internals.count_handles() > before
    handle.remove()


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_hooks_of_modules() -> None:
    net, x = nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    net.register_full_backward_hook(lambda *_: None)
    with Ops(internals.function_running) as mode:
        net(x)
    assert internals.BackwardHookFunction in mode.notes
    other = nn.Tanh()
    other.register_backward_hook(lambda *_: None)
    y = other(x)
    handle = get_gradient_edge(y).node.register_hook(lambda *_: None)
    hooks = handle.hooks_dict_ref() or {}
    assert any(isinstance(hook, internals.WrappedHook) for hook in hooks.values())


def test_identities_of_storages_and_generators() -> None:
    x, y = torch.ones(3), torch.ones(3)
    assert internals.identity_of(x.untyped_storage()) == internals.identity_of(x[1:].untyped_storage())
    assert internals.identity_of(x.untyped_storage()) != internals.identity_of(y.untyped_storage())
    first, second = torch.Generator(), torch.Generator()
    assert internals.identity_of(first) != internals.identity_of(second)
    assert internals.identity_of(torch.default_generator) == internals.identity_of(torch.default_generator)


def test_what_a_mode_sees_of_attributes() -> None:
    x, y = torch.ones(3), torch.zeros(3)
    with Functions() as mode:
        _ = x.requires_grad
        x.data = y
    assert internals.getter_of("requires_grad") in mode.called
    assert internals.set_data in mode.called
    for attribute in ("is_leaf", "grad_fn", "grad"):
        with Functions() as mode:
            getattr(x, attribute)
        assert mode.called == [internals.getter_of(attribute)]


def test_what_makes_a_tensor_of_a_subclass() -> None:
    seen: list[str] = []
    with Witness(lambda _, name: seen.append(name)):
        nn.Parameter(torch.ones(2))
    assert seen == [internals.MAKE_SUBCLASS]


def test_the_quick_softmax_is_the_op() -> None:
    x = torch.ones(3)
    with Ops() as mode:
        internals.softmax(x, 0, False)
        internals.log_softmax(x, 0, False)
        internals.softmax_back(x, x, 0, x.dtype)
    assert mode.ops == [aten._softmax.default, aten._log_softmax.default, aten._softmax_backward_data.default]


# Ops.


def test_schemas_say_what_ops_write_and_return() -> None:
    assert isinstance(aten.exp_.default, internals.OpOverload)
    written, read = (internals.schema_of(op) for op in (aten.add_.Tensor, aten.add.Tensor))
    assert written.is_mutable
    assert not read.is_mutable
    assert [argument.name for argument in read.arguments] == ["self", "other", "alpha"]
    assert [a.alias_info is not None and a.alias_info.is_write for a in written.arguments] == [True, False, False]
    assert internals.schema_of(aten.t.default).returns[0].alias_info is not None
    assert [a.default_value for a in read.arguments if a.has_default_value()] == [1]
    assert [a.kwarg_only for a in read.arguments] == [False, False, True]
    assert (read.name, str(read.arguments[0].type)) == ("aten::add", "Tensor")


def test_definitions_by_other_ops() -> None:
    assert internals.has_definition(aten.matmul.default)
    assert not internals.has_definition(aten.mm.default)


def test_kernels_in_python_for_tensors_without_data() -> None:
    assert internals.tells_in_python(aten.roll.default)
    assert internals.tells_in_python(aten.convolution_backward.default)
    assert not internals.tells_in_python(aten._ctc_loss.default)


def test_a_definition_is_of_other_ops_in_a_mode_of_functions() -> None:
    with Ops(lambda: None) as mode, torch.inference_mode(), Functions():
        internals.Definition(aten.mH.default)(torch.ones(2, 3))
    assert aten.mH.default not in mode.ops
    assert aten.addmv.default in internals.decomposition_table


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_the_op_of_cholesky() -> None:
    with Ops() as mode:
        if internals.CHOLESKY:
            torch.cholesky(torch.eye(2))
        else:
            with pytest.raises(RuntimeError, match="now removed"):
                torch.cholesky(torch.eye(2))
    assert {*mode.ops} >= {*internals.CHOLESKY}


def test_the_ops_of_roots() -> None:
    with Ops() as mode:
        if internals.SQUARE_ROOT:
            aten.linalg_matrix_sqrth(torch.eye(2))
            aten.linalg_polar(torch.eye(2))
        else:
            assert not hasattr(torch.linalg, "matrix_sqrth")
            assert not hasattr(torch.linalg, "polar")
    assert {*mode.ops} >= {*internals.SQUARE_ROOT, *internals.POLAR}


@pytest.mark.parametrize("op", [torch.fmax, torch.fmin, torch.clamp_min, torch.clamp_max, torch.clamp])
def test_whose_the_slope_is_where_numbers_are_equal(op: Callable[..., Tensor]) -> None:
    x = torch.tensor(1.0)
    assert torch.func.grad(op)(x, x) == (0.5 if internals.TIES_ARE_SHARED else 1)
    if op not in (torch.fmax, torch.fmin):
        assert torch.func.grad(op)(x, 1.0) == (0 if internals.TIES_ARE_SHARED else 1)


# Modes.


def test_the_stack_of_dispatch_modes() -> None:
    assert internals.count_dispatch_modes() == 0
    assert internals.dispatch_modes() == []
    with Ops() as outer, Ops() as inner:
        assert internals.count_dispatch_modes() == 2
        assert internals.dispatch_modes() == [outer, inner]
        assert internals.current_dispatch_mode() is inner
        with internals.pop_mode_temporarily() as popped:
            assert popped is inner
            assert internals.current_dispatch_mode() is outer
        with internals.disable_current_modes():
            torch.ones(2).exp()
            assert internals.current_dispatch_mode() is None
        assert inner.notes == []


def test_the_stack_of_function_modes() -> None:
    assert internals.count_function_modes() == 0
    with Functions() as outer, Functions() as mode:
        assert internals.count_function_modes() == 2
        assert internals.function_modes() == [outer, mode]
        assert internals.current_function_mode() is mode
        with internals.pop_function_mode_temporarily() as popped:
            assert popped is mode
            assert internals.current_function_mode() is outer
        assert internals.current_function_mode() is mode


def test_a_dispatch_mode_is_asked_whether_dynamo_skips_it() -> None:
    assert "_should_skip_dynamo" in vars(internals.TorchDispatchMode)


def test_torch_functions_of_subclasses_are_switched_off() -> None:
    class Loud(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            raise AssertionError

    loud = torch.ones(2).as_subclass(Loud)
    assert internals.is_torch_function_enabled()
    with internals.DisableTorchFunctionSubclass():
        assert not internals.is_torch_function_enabled()
        loud.exp()
    assert nn.Parameter.__torch_function__ is internals.no_torch_function
    assert Tensor.__torch_function__ is not internals.no_torch_function


def test_ops_that_no_mode_sees() -> None:
    seen = []

    class Asks(Functions):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(internals.hides_ops())
            return super().__torch_function__(func, types, args, kwargs)

    x = torch.ones(2)
    with Asks():
        torch.DoubleTensor([x[0], 1.0])
    assert {*seen} == {True, False}
    assert not internals.hides_ops()


def test_what_is_computed_without_views_is_no_view() -> None:
    with internals.without_views():
        one, other = torch.zeros(2).unbind()
    assert not internals.is_autograd_view(one)
    one.add_(torch.ones((), requires_grad=True))
    assert one.requires_grad
    assert (other.requires_grad, other._version) == (False, 0)
    assert internals.is_autograd_view(torch.zeros(2).unbind()[0])


@pytest.mark.parametrize("op", [aten.linalg_pinv.atol_rtol_tensor, *internals.SQUARE_ROOT, *internals.POLAR], ids=str)
def test_kernels_that_conjugate_are_wrong_in_a_dispatch_mode(op: internals.OpOverload) -> None:
    a = torch.complex(*torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)))
    a = a @ a.mH + torch.eye(3)
    expected, found = tree_leaves(op(a)), []

    class Mode(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            assert internals.hides_conjugation()
            found.append(func(*args))
            with internals.shown_conjugation():
                assert not internals.hides_conjugation()
                found.append(func(*args))
            return found[-1]

    with Mode():
        op(a)
    assert [all(map(partial(torch.allclose, rtol=1e-3), tree_leaves(each), expected)) for each in found] == [
        False,
        True,
    ]
    assert not internals.hides_conjugation()


def test_below_autograd_what_is_computed_can_pass_through_it_again() -> None:
    x = torch.ones(2, requires_grad=True)
    results = []

    class Again(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            results.append(func(*args).requires_grad)
            with internals.below_autograd(), torch.enable_grad():
                results.append(func(*args).requires_grad)
            return func(*args)

    with Again():
        x.exp()
    assert results[:2] == [False, True]


def test_fake_tensors() -> None:
    with internals.FakeTensorMode() as mode:
        fake = torch.ones(2)
    assert fake.fake_mode is mode  # type: ignore[attr-defined]
    assert type(fake).__module__.startswith("torch._subclasses.")


# Transforms.


def test_the_stack_of_transforms() -> None:
    seen: list[Any] = []

    def f(x: Tensor) -> Tensor:
        level = internals.retrieve_current_functorch_interpreter()
        assert isinstance(level, internals.VmapInterpreter)
        seen.extend((internals.maybe_current_level(), level.batch_size(), level.randomness(), level.level()))
        seen.append(len(internals.retrieve_all_functorch_interpreters()))
        with internals.temporarily_clear_interpreter_stack():
            seen.append(internals.peek_interpreter_stack())
        return x

    assert internals.maybe_current_level() is None
    assert internals.peek_interpreter_stack() is None
    torch.func.vmap(f, randomness="different")(torch.ones(3))
    assert seen == [1, 3, "different", 1, 1, None]


def test_gradients_in_batches() -> None:
    x = torch.ones(2, requires_grad=True)
    seen: list[bool] = []
    y = 2 * x
    y.register_hook(lambda gradient: seen.append(internals.is_legacy_batchedtensor(gradient)))
    torch.autograd.grad(y, x, torch.ones(3, 2), is_grads_batched=True, retain_graph=True)
    torch.autograd.grad(y, x, torch.ones(2))
    assert seen == [True, False]


def test_wrappers_of_transforms() -> None:
    x = torch.ones(2, 3)
    seen: list[Any] = []

    def f(row: Tensor) -> Tensor:
        assert internals.is_functorch_wrapped_tensor(row)
        assert internals.is_batchedtensor(row)
        seen.extend((internals.maybe_get_bdim(row), internals.maybe_get_level(row), internals.get_unwrapped(row) is x))
        return row

    torch.func.vmap(f, in_dims=1)(x)
    assert seen == [1, 1, True]
    assert not internals.is_functorch_wrapped_tensor(x)
    assert internals.maybe_get_level(x) == -1


def test_levels_of_vmap_by_hand() -> None:
    level = internals.enter_vmap(2, "same")
    try:
        row = internals.add_batch_dim(torch.arange(6.0).reshape(2, 3), 0, level)
        assert row.shape == (3,)
        assert torch.equal(internals.get_unwrapped(row * 2), torch.arange(6.0).reshape(2, 3) * 2)
    finally:
        internals.leave_vmap()
    assert internals.maybe_current_level() is None


def test_a_wrapper_whose_level_has_ended() -> None:
    kept: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        kept.append(x)
        assert internals.unwrap_if_dead(x) is x
        return x.sum()

    torch.func.grad(f)(torch.ones(2))
    assert internals.unwrap_if_dead(kept[0]) is not kept[0]


# Autograd and autocast.


def test_backward_passes_have_numbers() -> None:
    x, seen = torch.ones(2, requires_grad=True), []
    y = x * 2
    y.register_hook(lambda _: seen.append(internals.backward_pass()))
    y.sum().backward()
    assert internals.backward_pass() == -1
    assert seen[0] != -1


def test_levels_of_forward_mode() -> None:
    assert not internals.has_forward_level()
    with forward_ad.dual_level():
        assert internals.has_forward_level()


def test_autocast() -> None:
    assert not internals.is_any_autocast_enabled()
    with torch.autocast("cpu"):
        assert internals.is_any_autocast_enabled()
        assert "cpu" in internals.autocast_devices()
        with internals.DisableAutocast():
            assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.float32


# Custom Functions.


class WithContext(torch.autograd.Function):
    """A Function whose forward takes the context."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class Heir(WithContext):
    """One that inherits its forward."""


class WithSetup(torch.autograd.Function):
    """A Function whose forward takes no context."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        """Keep nothing."""


class Calls(torch.autograd.Function):
    """One that applies another, and then goes on."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return WithSetup.apply(x).sin()


class Decorated(torch.autograd.Function):
    """One with a decorated forward."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.exp()


class Inferring(torch.autograd.Function):
    """One that turns everything off."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        with torch.inference_mode():
            return x.exp()


class Returning(torch.autograd.Function):
    """One that returns what it was given, of which torch makes a view."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("function", [WithContext, Heir, WithSetup, Decorated, Inferring])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_function_of_which_the_forward_runs(function: Any, requires_grad: bool) -> None:
    with Ops(internals.function_running) as mode:
        function.apply(torch.ones(2, requires_grad=requires_grad))
    assert {*mode.notes} - {None} == {function}
    with Ops(internals.is_forward_mode_on) as mode:
        function.apply(torch.ones(2, requires_grad=requires_grad))
    assert False in mode.notes
    assert internals.is_forward_mode_on()
    assert internals.function_running() is None


def test_the_innermost_function() -> None:
    with Ops(internals.function_running) as mode:
        Calls.apply(torch.ones(2))
    by_op = dict(zip(mode.ops, mode.notes, strict=True))
    assert (by_op[aten.exp.default], by_op[aten.sin.default]) == (WithSetup, Calls)


def test_a_function_that_no_frame_names() -> None:
    x = torch.ones(2)
    with Ops(internals.function_running) as mode:
        Returning.apply(x)
    assert mode.notes == [torch.autograd.Function]


def squares(x: Tensor) -> Tensor:
    """Return the sum of squares."""
    return (x**2).sum()


def test_outside_of_functions_gradients_may_be_off() -> None:
    with Ops(internals.function_running) as mode:
        with torch.no_grad():
            torch.ones(2).exp()
        with torch.inference_mode():
            torch.ones(2).exp()
        torch.func.jvp(torch.func.grad(squares), (torch.ones(2),), (torch.ones(2),))
        torch.func.vmap(torch.exp)(torch.ones(2))
    assert {*mode.notes} == {None}


def test_functions_are_met_before_their_forward_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[type] = []

    def note(function: Any) -> None:
        met.append(function)
        monkeypatch.setattr(function, "forward", staticmethod(lambda _, x: x.cos()))

    monkeypatch.setattr(internals, "_watching", [])
    internals.watch_functions(note)
    kept = WithContext.apply
    assert torch.equal(kept(torch.ones(2)), torch.ones(2).cos())
    assert met == [WithContext]


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("function", [WithSetup, Decorated, Inferring, Returning, Calls])
def test_a_custom_function_is_never_lost(function: Any) -> None:
    with pytest.raises(hofunc.HofuncError, match=r"custom torch\.autograd\.Function|no rule for"):
        hofunc.hessian(lambda x: function.apply(x * 2).sum())(torch.ones(2))


def test_the_form_of_a_function_that_transforms_take() -> None:
    assert internals.has_setup_context(WithSetup)
    assert not internals.has_setup_context(Heir)
    with pytest.raises(RuntimeError) as caught:
        torch.func.vmap(Heir.apply)(torch.ones(2))
    assert internals.function_refused(caught.value) is Heir
    assert internals.function_refused(RuntimeError("setup_context")) is None
    assert WithSetup.setup_context is not Heir.setup_context is torch.autograd.Function.setup_context


# Operators that take functions, and torch.compile.


def test_operators_that_take_functions() -> None:
    called: list[str] = []
    before = internals.HigherOrderOperator.__call__
    try:
        internals.HigherOrderOperator.__call__ = lambda self, *_, **__: called.append(self.name())  # type: ignore[method-assign]
        torch.ops.higher_order.cond(True, None, None, ())
    finally:
        internals.HigherOrderOperator.__call__ = before  # type: ignore[method-assign]
    assert called == ["cond"]
    assert callable(internals.operator_utils._hop_compile_and_call)


def test_scans_and_attention_in_plain_ops() -> None:
    (sums,) = internals.generic_associative_scan(lambda a, b: [a + b], [torch.arange(4.0)])
    assert torch.equal(sums, torch.arange(4.0).cumsum(0))
    x = torch.ones(1, 1, 2, 3)
    attended = inspect.signature(internals.math_attention).parameters
    assert [*attended][:5] == ["query", "key", "value", "score_mod", "block_mask"]
    assert internals.cast_as_autocast(x, "cpu", torch.bfloat16).dtype == torch.bfloat16


def test_the_compiler_may_be_told_to_skip_code() -> None:
    def f(_: Tensor) -> bool:
        return torch.compiler.is_compiling()

    internals.skip_by_compiler(f.__code__)
    assert torch.compile(f, backend="eager")(torch.ones(1)) is False


def test_ops_on_lists_by_name() -> None:
    assert internals.schema_of(aten._foreach_mul_.Scalar).name == "aten::_foreach_mul_"
    key = internals.DispatchKey.CompositeExplicitAutograd
    assert torch.equal(aten._foreach_neg.default._op_dk(key, [torch.ones(2)])[0], -torch.ones(2))


def test_a_call_of_an_op_is_one_of_its_kernel() -> None:
    x = torch.ones(2)
    with Ops() as mode:
        found = internals.kernel_of(aten.sum.dim_IntList)(x, [0], keepdim=True)
    assert mode.ops == [aten.sum.dim_IntList]
    assert torch.equal(found, torch.full((1,), 2.0))


# Trees.


def test_trees() -> None:
    tree = {"b": (1, None), "a": [2.0, 3]}
    leaves, spec = internals.tree_flatten(tree)
    assert isinstance(spec, internals.TreeSpec)
    assert internals.tree_leaves(tree) == leaves
    assert spec.num_leaves == len(leaves)
    assert internals.tree_unflatten(leaves, spec) == tree
    assert internals.tree_map(str, (1, [2])) == ("1", ["2"])
    assert internals.tree_map_only(int, lambda n: n + 1, (1, "2")) == (2, "2")
    paths, same = internals.tree_flatten_with_path(((1,), {"n": 2}))
    assert [internals.keystr(path) for path, _ in paths] == ["[0][0]", "[1]['n']"]
    assert getattr(paths[0][0][0], "idx", None) == 0
    assert hash(same) == hash(copy.copy(same))
    assert internals.tree_is_leaf(1)
    assert not internals.tree_is_leaf([])


def test_a_class_of_hofunc_is_a_tree() -> None:
    assert internals.register_pytree_node is not None
    assert all(isinstance(leaf, Tensor) for leaf in internals.tree_leaves(_derivative()))


def _derivative() -> hofunc.Derivative:
    return hofunc.hod(lambda x: x.sin(), order=1, layout="compact")(torch.ones(2))


def test_batches_of_a_class_of_hofunc_are_collated() -> None:
    assert hofunc.Derivative in internals.default_collate_fn_map
    assert default_collate([_derivative(), _derivative()]).mapped == (2,)


# The compiler.


def test_inductor_finds_the_compiler_of_this_machine() -> None:
    if shutil.which("g++") or shutil.which("clang++"):
        assert internals.find_cpp_compiler()
    else:
        with pytest.raises(RuntimeError, match="compiler"):
            internals.find_cpp_compiler()


def test_one_thread_compiles_at_a_time() -> None:
    free: list[bool] = []

    def ask() -> None:
        lock: Any = internals.compiling()
        free.append(lock.acquire(blocking=False))

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        thread = Thread(target=ask)
        thread.start()
        thread.join()
        return graph.forward

    with internals.compiling():  # and the same thread again
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    torch.compile(lambda x: x + 2, backend=backend)(torch.ones(2))
    assert free == [False, False]


def test_who_compiles_in_a_child() -> None:
    lock: Any = internals.compiling()
    with lock:
        internals.compilable_in_child()  # which keeps what this thread holds
        assert lock._is_owned()
    thread = Thread(target=lock.acquire)  # and never gives up, as one that is not in the child
    thread.start()
    thread.join()
    assert not lock.acquire(blocking=False)
    internals.compilable_in_child()
    assert lock.acquire(blocking=False)
    lock.release()


def test_what_a_transform_refuses_may_be_allowed() -> None:
    def f(x: Tensor) -> Tensor:
        before = internals.get_inplace_requires_grad_allowed()
        internals.set_inplace_requires_grad_allowed(True)
        torch.ones(2).requires_grad_()
        internals.set_inplace_requires_grad_allowed(before)
        return x

    assert not internals.get_inplace_requires_grad_allowed()
    torch.func.vmap(f)(torch.ones(2))
    with pytest.raises(RuntimeError, match="requires_grad_"):
        torch.func.vmap(lambda x: torch.ones(2).requires_grad_())(torch.ones(2))


def test_a_saved_result_is_detached_and_given_back_with_its_history() -> None:
    made: list[tuple[Any, Any, Any]] = []

    class Made(internals.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            made.append((func, args, func(*args, **(kwargs or {}))))
            return made[-1][2]

    x = torch.ones(2, requires_grad=True)
    with Made():
        y = x.exp()
        torch.autograd.grad(y.sum(), x, create_graph=True)
    saved = next(out for func, args, out in made if func is aten.detach.default and args[0] is y)
    given = next(out for func, args, out in made if func is aten.detach.default and args[0] is saved)
    assert saved.grad_fn is None
    assert not internals.is_autograd_view(given)
    assert (given.grad_fn, given.output_nr) == (y.grad_fn, y.output_nr)
    assert any(given is arg for func, args, _ in made if func is aten.mul.Tensor for arg in args)


def test_what_is_called_before_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_swap_tensor_impl", torch._C._swap_tensor_impl)
    swapped: list[tuple[Tensor, Tensor]] = []
    internals.before_swaps(lambda one, other: swapped.append((one, other)))
    one, other = torch.ones(1), torch.zeros(2)
    torch.utils.swap_tensors(one, other)
    assert [*map(id, swapped[0])] == [id(one), id(other)]
    assert (one.tolist(), other.tolist()) == ([0, 0], [1])


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
@pytest.mark.parametrize("pushes", [False, True])
def test_linear_functions_push_tangents_where_they_are_to(pushes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    eager: Any = torch._functorch.eager_transforms
    monkeypatch.setattr(eager, "lazy_dynamo_disallow", eager.lazy_dynamo_disallow)
    internals.push_tangents_of(lambda: pushes)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    calls: list[Tensor] = []

    def function(x: Tensor) -> dict[str, Tensor]:
        calls.append(x)
        return {"a": x.sin(), "b": x**2}

    y, linear = torch.func.linearize(function, x)
    assert set(y) == {"a", "b"}
    before, tangents = len(calls), linear(torch.ones(2))
    assert torch.allclose(tangents["a"], x.cos())
    assert torch.allclose(tangents["b"], 2 * x)
    (slope,) = torch.autograd.grad(tangents["a"].sum(), x, allow_unused=True)
    assert (len(calls) > before, slope is not None) == (pushes, pushes)


def test_tensors_with_weak_references_are_not_swapped() -> None:
    one, other = torch.ones(1), torch.zeros(1)
    held = weakref.ref(one)
    with pytest.raises(RuntimeError) as caught:
        torch.utils.swap_tensors(one, other)
    assert internals.has_weak_reference(caught.value)
    assert not internals.has_weak_reference(RuntimeError("another"))
    assert held() is one


def test_functions_of_torch_are_told_from_others() -> None:
    assert all(map(internals.is_torch_function, (torch.add, torch.mm, torch._softmax)))
    assert not any(map(internals.is_torch_function, (torch.einsum, torch.Tensor.add, getitem, 1)))


def test_the_classes_of_pytrees() -> None:
    kinds = internals.pytree_classes()
    assert {tuple, list, dict, namedtuple, hofunc.Derivative} <= {*kinds}
    pair = namedtuple("pair", "a b")
    spec = internals.tree_flatten(pair(1, 2))[1]
    assert (spec.type, spec.context) == (namedtuple, pair)
    assert internals.is_namedtuple_class(pair)
    assert not internals.is_namedtuple_class(tuple)


# What torch compiles.


def test_the_compiler_calls_what_it_knows_and_ends_its_graph_before_what_it_is_told() -> None:
    called: list[bool] = []

    @internals.known_to_compiler
    def known() -> None:
        called.append(torch.compiler.is_compiling())

    def hidden(x: Tensor) -> Tensor:
        called.append(torch.compiler.is_compiling())
        return x

    def f(x: Tensor) -> Tensor:
        known()
        return x + 1

    torch.compile(f, backend="eager", fullgraph=True)(torch.ones(1))
    assert len(called) == 1
    internals.end_graph_before(hidden)
    with pytest.raises(RuntimeError):
        torch.compile(lambda x: hidden(x) + 1, backend="eager", fullgraph=True)(torch.ones(1))


class Twice(internals.HigherOrderOperator):
    """Stands for a call of a function, twice."""

    def __init__(self) -> None:
        super().__init__("hofunc_test_twice")

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError


TWICE = Twice()


class Sized(internals.HigherOrderOperator):
    """Stands for a call of a function of tensors of which sizes are symbols."""

    def __init__(self) -> None:
        super().__init__("hofunc_test_sized")

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError


SIZED = Sized()


def test_the_compiler_puts_a_graph_in_the_place_of_an_operator() -> None:
    from hofunc import internals_compiler as compiler  # noqa: PLC0415 - imports the compiler

    traced: list[Any] = []

    def lower(found: compiler.Traced) -> compiler.Lowered:
        traced.append(found)
        graph = torch.fx.symbolic_trace(lambda x, w: (aten.mul.Tensor(aten.mul.Tensor(x, w), 2),))
        return compiler.Lowered(graph, [0, 1], found.returned)

    compiler.compile_by(TWICE, lambda given, _: compiler.Asked(given.leaves[0], frozenset({0}), lower))
    weight = torch.tensor(3.0, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        leaves, spec = internals.tree_flatten((x,))
        what = internals.tree_flatten("k")
        found = TWICE(what, lambda _, x: internals.tree_flatten(x * weight), leaves, spec)
        return internals.tree_unflatten(*found)

    got = torch.compile(f, backend="eager", fullgraph=True)(torch.ones(2))
    assert torch.equal(got, torch.tensor([6.0, 6.0]))
    assert got.requires_grad
    (found,) = traced
    assert [type(leaf) for leaf in found.arguments.leaves] == [internals.FakeTensor]
    assert found.arguments.leaves[0].requires_grad
    assert len(found.captured) == 1
    assert found.returned.leaves == [compiler.Place(0)]
    assert [*found.operators] == []


def test_forms_are_checked_in_one_call() -> None:
    tensors = torch.ones(2, 3), torch.nn.Parameter(torch.ones(4))
    check = internals.form_check(tensors)
    assert check(*tensors)
    assert check(torch.zeros(2, 3), tensors[1])
    others = [torch.ones(3, 2), torch.ones(3, 2).t(), torch.ones(2, 3).double(), torch.ones(2, 3, device="meta")]
    assert not any(check(other, tensors[1]) for other in others)
    tensors[0].data = torch.ones(3, 2)
    assert not check(*tensors)
    assert internals.form_check(())()
    twice = torch.ones(2, 3)
    assert not internals.form_check((twice, twice))(twice, twice)


def test_a_node_of_pytrees_is_put_together() -> None:
    tree = OrderedDict(a=1, b=2)
    leaves, spec = internals.tree_flatten(tree)
    assert internals.joined_node(OrderedDict, leaves, spec.context) == tree


def test_sizes_as_symbols() -> None:
    from hofunc import internals_symbols as symbols  # noqa: PLC0415 - as above

    found: list[Any] = []

    def lower(traced: Any) -> Any:
        values = [*traced.tensors, *traced.captured]
        known = symbols.Symbols(values)
        shapes = [[known.value(size, [9, 4]) for size in tensor.shape] for tensor in traced.tensors]
        allowed = [known.allow(sizes) for sizes in ([9, 4], [9, 2], [1, 4], [9, 40])]
        found.append((known.hints, known.bounds(), known.fixed, shapes, allowed, len(known.places)))
        symbols.tie(known.numbers, 2)
        one = len(symbols.Symbols(values).hints)
        symbols.fix(values)
        found.append((one, symbols.Symbols(values).hints, symbols.Symbols(values).fixed))
        raise ValueError

    from hofunc import internals_compiler as compiler  # noqa: PLC0415 - as above

    compiler.compile_by(SIZED, lambda *_: compiler.Asked((), frozenset(), lower))

    def f(x: Tensor, y: Tensor) -> Tensor:
        if len(x) < 30 and len(x) != 2:
            x = torch.cat([x, x])
        leaves, spec = internals.tree_flatten((x, y))
        return SIZED(internals.tree_flatten("k"), lambda _, x, y: internals.tree_flatten(x.clone()), leaves, spec)[0][0]

    x, y = torch.ones(5, 3), torch.ones(5, 3)
    for tensor in (x, y):
        torch._dynamo.mark_dynamic(tensor, 0)
    with pytest.raises(Exception, match="ValueError"):
        torch.compile(f, backend="eager", fullgraph=True)(x, y)
    (hints, bounds, fixed, shapes, allowed, count), after = found
    assert hints == (5, 5)
    assert all(least == 2 for least, _ in bounds)
    assert fixed == {3}
    assert {*map(tuple, shapes)} == {(8, 3), (9, 3)}
    assert allowed == [True, False, False, False]
    assert count == 2
    assert after == (1, (), {3, 5, 10})
