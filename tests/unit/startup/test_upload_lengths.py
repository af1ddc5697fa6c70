"""What a run sends to its steward: uploads of a length that there is, and never without an end."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from startup.host.services import ServedMachine, ServicesServer
from startup.host.spool import Spool
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize("length", ["-1", "abc", "99999999999", "1e3"])
def test_an_upload_of_no_length_that_there_is_is_refused_before_it_is_read(length: str, tmp_path: Path) -> None:
    server = ServicesServer(ServedMachine({"vm": "v"}, Spool(tmp_path / "spool")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", server.server_address[1])) as asking:
            asking.settimeout(PATIENCE_S)
            head = f"POST /upload/storage/v1/b/x/o HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
            asking.sendall(head.encode())
            assert asking.recv(100).startswith(b"HTTP/1.1 413 ")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
