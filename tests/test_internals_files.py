"""Kernels of a graph as few files: which are in one, that each is called by its own name, and what is left alone."""

from inspect import getclosurevars
from pathlib import Path
from threading import current_thread
from typing import Any
from uuid import uuid4

import pytest
import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch.fx.experimental.proxy_tensor import make_fx

import hofunc
from hofunc import internals_files
from hofunc.internals_files import (
    LONG,
    Kernel,
    compiled_by_inductor,
    files_of,
    load_whole,
    parts_for_python,
    prepare_compiler,
    source_of,
)
from tests.cases import rand
from tests.checks import has_compiler

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore"),  # of inductor
]
CPU = torch.device("cpu")
INCLUDE = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
SOURCE = INCLUDE + 'extern "C"  void kernel(const float* in, float* out)\n{ out[0] = in[0]; }'


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the files that are compiled, or found on the disk."""
    prepare_compiler().join()
    found: list[str] = []
    load = CppPythonBindingsCodeCache.load_async

    def noted(source: str, *args: Any, **kwargs: Any) -> Any:
        found.append(source)
        return load(source, *args, **kwargs)

    monkeypatch.setattr(CppPythonBindingsCodeCache, "load_async", noted)
    monkeypatch.setattr(internals_files, "_graphs", set())  # whose numbers begin anew where the compiler is reset
    return found


def sorted_between(x: Tensor) -> tuple[Tensor, ...]:
    """Return what takes three kernels, as no kernel sorts."""
    first = x.sin().sort(0)[0].exp()
    second = first.sort(1)[0].cos() + x
    return first, second


def compiled(x: Tensor) -> Any:
    return compiled_by_inductor(make_fx(sorted_between)(x), [x], {"force_disable_caches": True})


def test_kernels_are_one_file(loaded: list[str]) -> None:
    x = rand(CPU, 5, 4)
    with torch.no_grad():
        got = compiled(x)(x)
    for one, other in zip(got, sorted_between(x), strict=True):
        torch.testing.assert_close(one, other)
    (source,) = loaded
    assert source.count('extern "C"') == source.count("namespace of_kernel_") == 3
    assert source.count("#include <torch/csrc/inductor/cpp_prefix.h>") == 1


def test_a_library_that_was_cut_off_is_made_again() -> None:
    parts = parts_for_python()
    assert parts is not None
    source = source_of([Kernel(["const float*", "float*"], SOURCE)], parts)
    load = CppPythonBindingsCodeCache.load_async(f"{source}\n// {uuid4()}")  # as no process has loaded it
    library = Path(getclosurevars(load).nonlocals["binary_path"])
    library.touch()
    assert load_whole(load).kernel_0
    assert library.stat().st_size


def test_a_backward_is_one_file(loaded: list[str]) -> None:
    x = rand(CPU, 5, 4).requires_grad_()
    result = compiled(x)(x)
    forward = len(loaded)
    (got,) = torch.autograd.grad(torch.cat(result).sin().sum(), x)
    (expected,) = torch.autograd.grad(torch.cat(sorted_between(x)).sin().sum(), x)
    torch.testing.assert_close(got, expected)
    assert (forward, len(loaded)) == (1, 2)


def test_the_header_is_compiled_beside_vectors(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    prepare_compiler.cache_clear()
    prepare_compiler().join()
    (source,) = loaded
    assert "namespace" not in source
    x = rand(CPU, 4, 9)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)(x)[1], sorted_between(x)[1])


def test_files_are_waited_for_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[Any]()

    def wait(load: Any) -> Any:
        waited.append(load)
        return load_whole(load)

    monkeypatch.setattr(internals_files, "load_whole", wait)
    x = rand(CPU, 5, 9)
    with torch.no_grad():
        function = compiled(x)
        assert not waited
        for _ in range(2):
            torch.testing.assert_close(function(x)[1], sorted_between(x)[1])
    assert len(waited) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_files_of_a_length(loaded: list[str], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals_files, "LONG", 1)
    x = rand(CPU, 5, 4 + threads)
    with torch.no_grad(), config.patch(compile_threads=threads):
        torch.testing.assert_close(compiled(x)(x)[1], sorted_between(x)[1])
    assert len(loaded) == 3


def test_what_differs_from_what_is_known_is_left_alone(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals_files, "_LIST", "another list")
    assert parts_for_python() is None
    x = rand(CPU, 6, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)(x)[1], sorted_between(x)[1])
    assert len(loaded) == 3


def test_what_does_not_compile_as_one_file_is_files(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals_files, "source_of", lambda *_: "no C++")
    x = rand(CPU, 8, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)(x)[1], sorted_between(x)[1])
    assert len(loaded) == 4


def test_a_graph_with_a_derivative_is_one_file(loaded: list[str]) -> None:
    def call(x: Tensor) -> Tensor:
        return torch.cat(sorted_between(hofunc.hessian_diagonal(lambda x: (x.sin() ** 2).sum(-1))(x)))

    x, options = rand(CPU, 9, 4).requires_grad_(), dict[str, Any](fx_graph_cache=False)
    torch.compiler.reset()
    got: Any = torch.compile(call, options=options)
    (gradient,) = torch.autograd.grad(got(x).sin().sum(), x)
    (expected,) = torch.autograd.grad(call(x).sin().sum(), x)
    torch.testing.assert_close(gradient, expected)
    assert len(loaded) == 2  # forward and backward
    with torch.no_grad():
        other: Any = torch.compile(sorted_between, options=options)
        torch.testing.assert_close(other(x)[1], sorted_between(x)[1])
    assert len(loaded) == 5


def test_outside_the_compiler_does_as_before(loaded: list[str]) -> None:
    x = rand(CPU, 7, 4)
    with torch.no_grad():
        compiled(x)
        loaded.clear()
        other: Any = torch.compile(sorted_between, options={"fx_graph_cache": False})
        torch.testing.assert_close(other(2 * x)[1], sorted_between(2 * x)[1])
    assert len(loaded) == 3


def test_what_the_compiler_is_asked_first_is_asked_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def ask() -> None:
        asked.append(current_thread().name)
        raise RuntimeError("no compiler")  # which what compiles is told

    monkeypatch.setattr(internals_files, "pick_vec_isa", ask)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    prepare_compiler.cache_clear()
    for _ in range(2):
        prepare_compiler().join()
    assert asked == ["hofunc-prepares"]


def test_which_are_one_file() -> None:
    long, short = Kernel([], LONG * "x"), [Kernel([], "x") for _ in range(3)]
    assert files_of([]) == []
    assert files_of(short) == [short]
    assert files_of([*short, long, *short]) == [[*short, long], short]


def test_which_can_stand_beside_others() -> None:
    assert internals_files._is_for_a_file(SOURCE)
    assert not internals_files._is_for_a_file("#define N 3\n" + SOURCE)
    assert not internals_files._is_for_a_file(SOURCE.replace("kernel", "another"))


def test_what_is_written_depends_on_nothing_else() -> None:
    parts = parts_for_python()
    assert parts is not None
    kernels = [Kernel(["const float*", "float*"], SOURCE), Kernel(["const float*", "float*"], SOURCE)]
    first, second = source_of(kernels, parts), source_of(kernels, parts)
    assert first == second
    assert "of_kernel_1::kernel_1(parse_arg<float*>(args, 0), parse_arg<float*>(args, 1))" in first
