"""Files of plans: a line that says what follows and for whom, and then a document.

The line is ``hofunc plan`` and a JSON object with the format, the versions of hofunc and torch, the devices, and the
digest of all. What follows is what torch.save makes of the text and the tensors of the document, and is read with
``weights_only=True``, which runs nothing. So neither a file that is damaged nor one of another version gets that far.
"""

import json
from hashlib import sha256
from io import BytesIO
from pickle import UnpicklingError
from typing import Any, NoReturn

import torch

from hofunc.errors import PlanFileError
from hofunc.releases import RELEASE, VERSION
from hofunc.travel.document import DAMAGE, Document

_FIRST = b"hofunc plan "
_FORMAT = 3
_RELEASE = ".".join(map(str, RELEASE))
_MADE_HERE = {"format": _FORMAT, "hofunc": VERSION, "torch": _RELEASE}


def packed(document: Document) -> bytes:
    """Return a document as what a file holds."""
    buffer = BytesIO()
    torch.save({"text": document.text, "tensors": document.tensors}, buffer)
    said = {**_MADE_HERE, "devices": document.devices}
    said["digest"] = _digest(said, buffer.getvalue())
    return _FIRST + json.dumps(said).encode() + b"\n" + buffer.getvalue()


def unpacked(data: bytes, source: str) -> Document:
    """Return the document that a file holds.

    Args:
        data: What it holds.
        source: What an error calls it.

    Raises:
        PlanFileError: It is no plan, one that is damaged, or one of other versions or devices.
    """
    line, _, content = data.partition(b"\n")
    said = _said(line, source)
    for name, here in _MADE_HERE.items():
        if said.get(name) != here:
            _refuse(source, f"{name} {said.get(name)!r}", f"{name} {here!r}", "Make the plan anew with what is here.")
    if said.pop("digest", None) != _digest(said, content):
        refuse_damaged(source, "other bytes than were written")
    devices = [name for name in said.get("devices", ()) if isinstance(name, str)]
    _check_devices(devices, source)
    try:
        found = torch.load(BytesIO(content), weights_only=True)
        return Document(found["text"], found["tensors"], devices)
    except (UnpicklingError, *DAMAGE) as error:
        refuse_damaged(source, error)


def refuse_damaged(source: str, got: object) -> NoReturn:
    """Refuse a file that is not as it was written.

    Raises:
        PlanFileError: Always.
    """
    text = f"{type(got).__name__}: {(str(got).splitlines() or [''])[0]}" if isinstance(got, Exception) else str(got)
    _refuse(source, text, "a plan as hofunc writes it", "Save the plan anew; the file is cut off, or was changed.")


def _said(line: bytes, source: str) -> dict[str, Any]:
    if not line.startswith(_FIRST):
        _refuse(source, "something else", "a plan that Plan.save wrote", "Give the path of such a file.")
    try:
        said = json.loads(line[len(_FIRST) :])
    except (ValueError, RecursionError) as error:
        refuse_damaged(source, error)
    if not isinstance(said, dict):
        refuse_damaged(source, "no versions")
    return said


def _check_devices(names: list[str], source: str) -> None:
    for name in names:
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError) as error:  # the latter of a torch without that kind of device
            _refuse(
                source,
                f"{name}, which is not here: {(str(error).splitlines() or [''])[0]}",
                "devices that are here",
                "Make the plan on a device of this machine.",
            )


def _digest(said: dict[str, Any], content: bytes) -> str:
    return sha256(json.dumps(said, sort_keys=True).encode() + b"\n" + content).hexdigest()


def _refuse(source: str, got: str, expected: str, remedy: str) -> NoReturn:
    raise PlanFileError(f"hofunc.load_plan: {source}", got=got, expected=expected, remedy=remedy)
