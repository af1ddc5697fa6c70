"""The cloud's memory on disk: documents by kind and key, in SQLite, so that a restarted daemon knows what it owes."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

from orchestrator.embedded.documents import private_file

# An upsert keeps the row where it is, so that documents stay in the order of their making.
UPSERT = "INSERT INTO documents VALUES (?, ?, ?) ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body"


class Store:
    """Thread-safe; a document written is there after a crash of the process."""

    def __init__(self, path: Path) -> None:
        private_file(path)  # its journals take after it
        self.lock = threading.Lock()
        self.connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        # Safe against a killed process, which is what happens here; a power cut may lose the last seconds.
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=OFF")
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS documents (kind TEXT, key TEXT, body TEXT, PRIMARY KEY (kind, key))"
        )

    def put(self, kind: str, key: str, document: Any) -> None:
        body = json.dumps(document)
        with self.lock:
            self.connection.execute(UPSERT, (kind, key, body))

    def get(self, kind: str, key: str) -> Any:
        """The document, or None."""
        with self.lock:
            row = self.connection.execute("SELECT body FROM documents WHERE kind=? AND key=?", (kind, key)).fetchone()
        return None if row is None else json.loads(row[0])

    def drop(self, kind: str, key: str) -> None:
        """Idempotent."""
        with self.lock:
            self.connection.execute("DELETE FROM documents WHERE kind=? AND key=?", (kind, key))

    def all(self, kind: str) -> list[Any]:
        """Every document of a kind, in the order in which they were first written."""
        with self.lock:
            rows = self.connection.execute("SELECT body FROM documents WHERE kind=? ORDER BY rowid", (kind,)).fetchall()
        return [json.loads(row[0]) for row in rows]

    def close(self) -> None:
        with self.lock:
            self.connection.close()
