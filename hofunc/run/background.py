"""Compiling in the background: a program runs uncompiled until another thread is done."""

import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from hofunc.errors import PlanningWarning, warn
from hofunc.graph.layout import copied_as_laid
from hofunc.graph.standin import in_transform
from hofunc.graph.tape import is_recording
from hofunc.internals import compilable_in_child, has_forward_level

Tensors = Sequence[torch.Tensor]


def _new_compiler() -> ThreadPoolExecutor:
    """Return what compiles, in a thread that starts with the first task."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="hofunc-compile")


_compiler = _new_compiler()


def _alone() -> None:
    """Begin anew in a forked process, which has none of the threads of its parent, nor what they compiled."""
    global _compiler  # noqa: PLW0603 - the process is another one
    _compiler = _new_compiler()
    compilable_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone)


class InBackground:
    """Runs a program, compiled as soon as it is.

    It is compiled on copies of the tensors of the first call of each kind.

    Args:
        run: Runs it uncompiled.
        compiled: Runs it compiled, which its first call of a kind does.
        kind_of: Tells of what kind a call is.
    """

    def __init__(
        self, run: Callable[[Tensors], Any], compiled: Callable[[Tensors], Any], kind_of: Callable[[Tensors], Hashable]
    ):
        self._run, self._compiled, self._kind_of = run, compiled, kind_of
        self._tasks: dict[Hashable, Future[Any]] = {}  # by kind
        self._errors: list[Exception] = []

    def __call__(self, tensors: Tensors) -> Any:
        """Return the results of the program."""
        if in_transform() or is_recording() or has_forward_level():
            return self._run(tensors)
        kind = self._kind_of(tensors)
        task = self._tasks.get(kind)
        if task is None:
            copies = [copied_as_laid(tensor.detach()).requires_grad_(tensor.requires_grad) for tensor in tensors]
            self._tasks[kind] = _compiler.submit(self._compile, copies, torch.is_grad_enabled())
            return self._run(tensors)
        if not task.done():
            return self._run(tensors)
        if self._errors:
            what = "hofunc: a plan runs uncompiled, as compiling it in the background failed"
            warn(f"{what}: {self._errors.pop()}", PlanningWarning)
        return task.result()(tensors)

    def _compile(self, tensors: Tensors, is_followed: bool) -> Callable[[Tensors], Any]:
        """Compile, and return what is to run from now on."""
        try:
            with torch.set_grad_enabled(is_followed):
                self._compiled(tensors)
        except Exception as error:
            self._errors.append(error)
            return self._run
        return self._compiled
