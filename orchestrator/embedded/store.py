"""The cloud's state on disk: documents by kind and key in SQLite, so that a restarted daemon has its bill and its
state."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.embedded.documents import private_file

# An upsert does not move the row, so that documents stay in the order of their creation.
UPSERT = "INSERT INTO documents VALUES (?, ?, ?) ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body"

DROP = "DELETE FROM documents WHERE kind=? AND key=?"


class Store:
    """The documents. Thread-safe. A written document survives a crash of the process. If the disk is full, `put` and
    `drop` raise. `owe` remembers the document and writes it once the disk has room: it is for things that have
    happened, which must neither be undone nor stop what follows."""

    def __init__(self, path: Path) -> None:
        private_file(path)  # SQLite's journals get the same permissions
        self.lock = threading.Lock()
        self.owed: dict[tuple[str, str], str | None] = {}
        self.connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        # This is safe if the process is killed, which is what happens here. A power cut may lose the last seconds.
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=OFF")
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS documents (kind TEXT, key TEXT, body TEXT, PRIMARY KEY (kind, key))"
        )

    def put(self, kind: str, key: str, document: Any) -> None:
        body = json.dumps(document)
        with self.lock:
            self._write_owed()
            self.connection.execute(UPSERT, (kind, key, body))
            self.owed.pop((kind, key), None)

    def owe(self, kind: str, key: str, document: Any) -> None:
        """Writes a document, or drops it if `document` is None, now or once the disk has room. It raises nothing. `get`
        and `all` do not see the change before it is on disk."""
        with self.lock:
            self.owed[kind, key] = None if document is None else json.dumps(document)
            with suppress(sqlite3.OperationalError):
                self._write_owed()

    def _write_owed(self) -> None:
        """Writes the remembered documents, oldest first."""
        while self.owed:
            (kind, key), body = next(iter(self.owed.items()))
            if body is None:
                self.connection.execute(DROP, (kind, key))
            else:
                self.connection.execute(UPSERT, (kind, key, body))
            del self.owed[kind, key]

    def get(self, kind: str, key: str) -> Any:
        """The document, or None."""
        with self.lock:
            row = self.connection.execute("SELECT body FROM documents WHERE kind=? AND key=?", (kind, key)).fetchone()
        return None if row is None else json.loads(row[0])

    def drop(self, kind: str, key: str) -> None:
        """Deletes a document, if it exists."""
        with self.lock:
            self.connection.execute(DROP, (kind, key))
            self.owed.pop((kind, key), None)

    def all(self, kind: str) -> list[Any]:
        """All documents of a kind, in the order in which they were first written."""
        with self.lock:
            rows = self.connection.execute("SELECT body FROM documents WHERE kind=? ORDER BY rowid", (kind,)).fetchall()
        return [json.loads(row[0]) for row in rows]

    def close(self) -> None:
        with self.lock:
            with suppress(sqlite3.OperationalError):
                self._write_owed()
            self.connection.close()
