"""What is known of mutants, in a file, so that a run that was stopped goes on where it was."""

import sqlite3
from pathlib import Path


class Session:
    """The verdict on every mutant that was tried, by its key."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path)
        self._connection.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, verdict TEXT)")

    def verdicts(self) -> dict[str, str]:
        """Return all verdicts."""
        return dict(self._connection.execute("SELECT key, verdict FROM verdicts"))

    def keep(self, key: str, verdict: str) -> None:
        """Write a verdict to the file, at once."""
        with self._connection:
            self._connection.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (key, verdict))

    def forget_survivors(self) -> None:
        """Forget what survived, for tests that are better now."""
        with self._connection:
            self._connection.execute("DELETE FROM verdicts WHERE verdict = 'survived'")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
