"""All entries of the zoo, in the order of the table."""

from verification.zoo import gaussian_processes, language, ordinary
from verification.zoo.entry import Entry, Library

LIBRARIES: tuple[Library, ...] = (
    gaussian_processes.gpytorch,
    gaussian_processes.linear_operator,
    gaussian_processes.botorch,
    ordinary.torchdiffeq,
    language.transformers,
)

ENTRIES: dict[str, Entry] = {entry.key: entry for library in LIBRARIES for entry in library.entries}
