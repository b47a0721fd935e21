"""Files of plans, as others may write them: with a digest that is right."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.callable_plan import unpickled
from hofunc.errors import PlanFileError
from hofunc.travel.document import Document
from hofunc.travel.files import packed, unpacked
from tests.checks import refused
from tests.travel.kept import SAVED


@pytest.fixture
def document() -> Document:
    plan = hofunc.derivatives(lambda x: (x**3).clone(memory_format=torch.contiguous_format), 2).plan(torch.ones(2))
    _, (data,) = plan.__reduce__()
    return unpacked(data, "a plan")


def loads(document: Document) -> Callable[[], Any]:
    """Return what loads a plan of a document."""
    return lambda: unpickled(packed(document))


def changed(document: Document, kind: str, change: Callable[[list[Any]], Any]) -> Document:
    """Return a document of which the entries of a kind are changed."""
    entries = [change(entry) if entry[0] == kind else entry for entry in json.loads(document.text)]
    return document._replace(text=json.dumps(entries))


def test_the_document_itself_is_a_plan(document: Document) -> None:
    value, first, _ = loads(document)()(torch.ones(2))
    assert torch.equal(value, torch.ones(2))
    assert torch.equal(first, 3 * torch.eye(2))
    assert document.devices == ["cpu"]


def test_a_device_that_is_not_here(document: Document) -> None:
    other = document._replace(devices=["cpu", "cuda:99"])
    refused(loads(other), PlanFileError, "got cuda:99, which is not here", "devices that are here")


def test_what_has_to_be_imported_first(document: Document) -> None:
    other = document._replace(text=document.text.replace("aten.clone.default", "nobody.knows.default"))
    assert other != document
    refused(loads(other), PlanFileError, "nobody.knows.default, which is not there", "Import the module that defines")


def test_parts_that_are_none(document: Document) -> None:
    for part in ("name", "arguments", "captured tensors", "steps", "result", "explanation", "recording"):

        def without(entry: list[Any], part: str = part) -> list[Any]:
            return ["part", part, 1] if entry[1] == part else entry

        refused(loads(changed(document, "part", without)), PlanFileError, f"TypeError: int for its {part}")
    refused(loads(document._replace(text="[]")), PlanFileError, "a plan as hofunc writes it")
    refused(loads(document._replace(text="[" * 100000)), PlanFileError, "a plan as hofunc writes it")


def test_steps_are_no_code(document: Document) -> None:
    """The function that runs a plan is written from it, so that what stands for a number or a name has to be one."""
    ran: list[int] = []
    hofunc.callable_plan.ran = ran.append  # type: ignore[attr-defined]
    code = "0] or __import__('hofunc').callable_plan.ran(1) or values[0"

    def origin(entry: list[Any]) -> list[Any]:
        return [*entry[:2], code, *entry[3:]] if entry[1].endswith(":Given") else entry

    other = changed(document, "fields", origin)
    assert other != document
    refused(loads(other), PlanFileError, "steps that are none")
    keyword = "memory_format=None) or __import__('hofunc').callable_plan.ran(1) or dict(a"
    other = document._replace(text=document.text.replace('"memory_format"', json.dumps(keyword)))
    assert other != document
    refused(loads(other), PlanFileError, "steps that are none")
    assert not ran
    del hofunc.callable_plan.ran  # type: ignore[attr-defined]


def test_steps_that_take_fewer_tensors_than_they_name() -> None:
    _, (data,) = SAVED["indices"]().plan().__reduce__()
    document = unpacked(data, "a plan")
    entries, refusals = json.loads(document.text), 0
    for place in [entry[-1][0] for entry in entries if entry[0] == "fields" and entry[1].endswith(":Step")]:
        fewer = [entry[:2] if number == place else entry for number, entry in enumerate(entries)]
        try:
            loads(document._replace(text=json.dumps(fewer)))()
        except PlanFileError:
            refusals += 1
    assert refusals


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return _run, ()


_ran: list[int] = []


def _run() -> Tensor:
    _ran.append(1)
    return torch.ones(2)


def test_what_runs_when_it_is_unpickled_does_not_run(document: Document) -> None:
    other = document._replace(tensors=[_Runs()])  # type: ignore[list-item]
    refused(loads(other), PlanFileError, "UnpicklingError", "a plan as hofunc writes it")
    assert not _ran
