"""What hofunc reads of inductor to compile the kernels of a graph as one file of C++ rather than each as one.

A file costs 0.4 seconds of a processor before the first kernel in it: the header that is compiled already is read, and
what comes out is linked. A kernel itself costs about 0.05 if it is a product of matrices, and derivatives are mostly
these, or about 10 microseconds for each character that inductor writes. It imports the compiler, which takes seconds,
and so is imported where something is compiled.

NOTE [files]: inductor names each kernel `kernel`, and defines what it needs beside it. So what is in a file is in a
namespace for each kernel, but for the headers, and each has a name of its own for Python to call it by. Which kernels
are one file is a matter of how long they are and of nothing else, so that it is found again on the disk in the next
process. A file of all would keep the other processors waiting.

NOTE [late]: inductor waits for all kernels of a graph before it returns what runs that. A graph of a plan is compiled
to be run next, often after others of its regions are. So what waits for a file is the first call of a kernel in it,
which then puts all of them where they are used, and inductor writes the next graph while other processors compile
those before.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial, wraps
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._guards import CompileContext, CompileId
from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.codecache import CodeCacheFuture, CppPythonBindingsCodeCache
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.exc import CppCompileError
from torch.fx import GraphModule

from hofunc.internals import compiling

LONG = 100_000  # characters in a file, from which on the next kernel is in another one

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*\n", re.MULTILINE)
_KERNEL = re.compile(r'(extern "C"[^(]*\b)kernel(?=\()')
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define\b", re.MULTILINE)

# Of the C++ that is added to a kernel for Python: what comes before what calls it, and the list of what can be called.
_CALL, _LIST = "static PyObject* {entry_func}_py", "static PyMethodDef py_methods[]"
_ROW = '{{"{entry_func}", {entry_func}_py, METH_VARARGS, ""}},'
_WAITING = "kernels_of_hofunc"

_is_few: ContextVar[bool] = ContextVar("few", default=False)  # whether a graph of hofunc's is compiled
_graphs: set[CompileId] = set()  # of torch.compile, with derivatives in them


@dataclass(eq=False)
class Kernel:
    """A kernel that is to be compiled.

    Attributes:
        types: The types of its arguments in C++.
        source: What inductor wrote.
    """

    types: list[str]
    source: str


@dataclass(frozen=True, slots=True)
class _File:
    """A file of kernels that is being compiled.

    Attributes:
        names: What the kernels are called where they are used.
        kernels: The kernels.
        load: What waits for the file, and returns it as a module.
        take: Compiles a kernel as a file of its own, given the types of its arguments and its source.
    """

    names: Sequence[str]
    kernels: Sequence[Kernel]
    load: Callable[[], Any]
    take: Callable[[list[str], str], Any]

    def made(self) -> dict[str, Any]:
        """Return the functions that run the kernels by name, once they are compiled."""
        try:
            module = load_whole(self.load)
        except CppCompileError:  # maybe only as one file
            taken = [self.take(kernel.types, kernel.source) for kernel in self.kernels]
            made = [each.result() if isinstance(each, CodeCacheFuture) else each for each in taken]
        else:
            made = [getattr(module, name) for _, name in _named(self.kernels)]
        return dict(zip(self.names, made, strict=True))

    def late(self, scope: dict[str, Any]) -> dict[str, Any]:
        """Return by name functions that wait for the file when one is first called, see NOTE [late]."""

        def waiting(name: str) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                scope.update(self.made())
                return scope[name](*args)

            return call

        return {name: waiting(name) for name in self.names}


class Parts(NamedTuple):
    """What inductor adds to a kernel for Python, in parts: before, what calls it, and after."""

    before: str
    call: str
    after: str


def parts_for_python() -> Parts | None:
    """Return what inductor adds to a kernel; None if it is not what is known."""
    text = CppPythonBindingsCodeCache.suffix_template
    if any(text.count(mark) != 1 for mark in (_CALL, _LIST, _ROW)):
        return None
    first, second = text.index(_CALL), text.index(_LIST)
    return Parts(text[:first], text[first:second], text[second:]) if first < second else None


def compiled_by_inductor(module: GraphModule, tensors: Sequence[Tensor], options: dict[str, Any]) -> Any:
    """Compile a graph for tensors that lie in memory as the given ones do, its kernels as few files.

    So is its backward, which is compiled when it is first needed.
    """

    @wraps(compile_fx_inner)
    def inner(*args: Any, **kwargs: Any) -> Any:
        with compiling(), few_files():
            return compile_fx_inner(*args, **kwargs)

    prepare_compiler()
    with few_files():  # those that are taken from a cache
        return compile_fx(module, list(tensors), inner, options)


@contextmanager
def few_files() -> Iterator[None]:
    """Let the kernels of what this thread compiles be few files."""
    _replace()
    token = _is_few.set(True)
    try:
        yield
    finally:
        _is_few.reset(token)


def few_files_of_graph() -> None:
    """Let the kernels of the graph that torch.compile makes now be few files, and those of its backward."""
    _replace()
    graph = CompileContext.current_compile_id()
    if graph is not None:
        _graphs.add(graph)


def _is_ours() -> bool:
    return _is_few.get() or CompileContext.current_compile_id() in _graphs


def _replace() -> None:
    """Have inductor ask for each kernel whether it is to be in a file with others."""
    if hasattr(AsyncCompile.wait, "before"):
        return
    take, wait = AsyncCompile.cpp_pybinding, AsyncCompile.wait

    @wraps(take)
    def taken(compiler: Any, types: list[str], source: str) -> Any:
        parts = parts_for_python() if _is_ours() and _is_for_a_file(source) else None
        if parts is None:
            return take(compiler, types, source)
        kernel = Kernel(types, source)
        vars(compiler).setdefault(_WAITING, (parts, []))[1].append(kernel)
        return kernel

    @wraps(wait)
    def waited(compiler: Any, scope: dict[str, Any]) -> None:
        parts, kernels = vars(compiler).pop(_WAITING, (None, []))
        submit = compiler.submit if get_compile_threads() > 1 else None
        names = {value: name for name, value in scope.items() if isinstance(value, Kernel)}
        if kernels:
            prepare_compiler().join()
        for each in files_of(kernels):
            file = _File([names[kernel] for kernel in each], each, _load(each, parts, submit), partial(take, compiler))
            scope |= file.late(scope) if _is_few.get() else file.made()
        wait(compiler, scope)

    waited.before = wait  # type: ignore[attr-defined]
    AsyncCompile.cpp_pybinding = taken  # type: ignore[method-assign, assignment]
    AsyncCompile.wait = waited  # type: ignore[method-assign, assignment]


@cache
def prepare_compiler() -> Thread:
    """Have inductor find out, in another thread, what it asks the C++ compiler before the first kernel.

    It is which vectors that and the processor have, for which files are compiled and loaded, in a later process only
    loaded; and the header that all files share, which is compiled once. Where a graph is for another device, it may
    never ask.
    """
    thread = Thread(target=_prepare, name="hofunc-prepares", daemon=True)
    thread.start()
    return thread


def _prepare() -> None:
    if torch.cuda.is_available():
        return
    with suppress(Exception):  # which is raised where it is asked for
        pick_vec_isa()
        if (parts := parts_for_python()) is not None:
            _load([], parts, None)


def _is_for_a_file(source: str) -> bool:
    """Tell whether a kernel can stand beside others, with a name of its own."""
    return len(_KERNEL.findall(source)) == 1 and not _DEFINE.search(source)


def files_of(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """Return kernels by the file that they are in, in order."""
    files: list[list[Kernel]] = []
    length = LONG
    for kernel in kernels:
        if length >= LONG:
            files.append([])
            length = 0
        files[-1].append(kernel)
        length += len(kernel.source)
    return files


def _named(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, str]]:
    return ((kernel, f"kernel_{place}") for place, kernel in enumerate(kernels))


def _load(kernels: Sequence[Kernel], parts: Parts, submit: Any) -> Callable[[], Any]:
    """Return what waits for the file of some kernels to be compiled, and returns it as a module."""
    return CppPythonBindingsCodeCache.load_async(source_of(kernels, parts), submit_fn=submit)


def load_whole(load: Callable[[], Any]) -> Any:
    """Return the module of a file, of which the library is made again if it was cut off.

    Inductor writes it where it is looked for, so a process that ends meanwhile leaves a part of it to all others.
    """
    try:
        return load()
    except ImportError as error:
        if error.path is None:
            raise
        Path(error.path).unlink(missing_ok=True)
        return load()


def source_of(kernels: Sequence[Kernel], parts: Parts) -> str:
    """Return the file of some kernels, with what Python calls them by."""
    includes = dict.fromkeys(line.strip() for kernel in kernels for line in _INCLUDE.findall(kernel.source))
    named = [*_named(kernels)]
    bodies = [_in_namespace(kernel.source, name) for kernel, name in named]
    calls = [_called(kernel, name, parts.call) for kernel, name in named]
    rows = [_ROW.format(entry_func=name) for _, name in named]
    own = CppPythonBindingsCodeCache.entry_function
    before = parts.before.format(entry_func=own, extra_parse_arg="")
    after = parts.after.replace(_ROW, "{rows}").format(entry_func=own, rows="\n    ".join(rows))
    return "\n".join([*includes, *bodies, before, *calls, after])


def _in_namespace(source: str, name: str) -> str:
    body = _KERNEL.sub(rf"\1{name}", _INCLUDE.sub("", source))
    return f"namespace of_{name} {{\n{body}\n}}"


def _called(kernel: Kernel, name: str, call: str) -> str:
    """Return what calls a kernel with what Python passes."""
    values = [f"parse_arg<{kind.replace('const ', '')}>(args, {place})" for place, kind in enumerate(kernel.types)]
    made = f"of_{name}::{name}({', '.join(values)}); Py_RETURN_NONE;"
    return call.format(entry_func=name, arg_len=len(values), call_entry_func=made)
