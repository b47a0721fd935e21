"""Files that are written whole or not at all."""

from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, in place of the one that there may be, at once.

    Args:
        path: The file.
        data: What it is to hold.

    Raises:
        OSError: It cannot be written; what was there is as it was.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
