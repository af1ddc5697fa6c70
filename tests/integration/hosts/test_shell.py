"""Who is let in and who is believed, against real servers: every refusal says what happened and what to do next."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.adapters.hosts.host_operations import in_sh
from orchestrator.adapters.hosts.ssh import SshShell
from orchestrator.core.errors import BenchError, ConfigError, HostKeyRefused, HostUnfit, PermissionDenied, Unavailable
from orchestrator.core.hosts import parse_target
from tests.integration.hosts.conftest import Client, Start
from tests.support.patience import PATIENCE_S, await_truth
from tests.support.ports import deaf_port
from tests.support.sshd import Sshd, Wire, make_key, sshd

PYTHONS = f"{Path(sys.executable).parent}:/usr/bin:/bin"


def ask(target: str, operation: str = "runs", python: str = "") -> object:
    shell = SshShell(parse_target(target))
    try:
        return shell.ask(operation, {}, python=python)
    finally:
        shell.close()


def refusal(target: str, kind: type[BenchError], python: str = "") -> tuple[str, str]:
    """What is said, and the hint. The exit code is that of its class."""
    with pytest.raises(kind) as caught:
        ask(target, python=python)
    assert type(caught.value) is kind
    return str(caught.value), caught.value.hint


@contextmanager
def serving(start: Start, client: Client, path: str = PYTHONS, *lines: str) -> Iterator[Sshd]:
    with start(environment={"PATH": path}, lines=lines) as server:
        client.reaches(server)
        yield server


@contextmanager
def an_agent(server: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent that has the user's key."""
    address, add = server.folder / "agent", ["ssh-add", "-q", str(server.user_key)]
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(address)], stdout=subprocess.DEVNULL) as agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
        try:
            # Its address is there a moment before it listens.
            await_truth(lambda: subprocess.run(add, capture_output=True).returncode == 0, "the agent")
            yield
        finally:
            agent.terminate()


def test_an_alias_with_user_port_and_key_of_the_configuration_is_honoured(start: Start, client: Client) -> None:
    with serving(start, client):
        assert ask("box") == {"runs": []}


def test_user_and_port_can_be_given_with_the_name(start: Start, client: Client) -> None:
    with serving(start, client) as server:
        client.configure(f"Host 127.0.0.1\n  IdentityFile {server.user_key}")
        user = os.environ.get("USER") or subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        assert ask(f"{user}@127.0.0.1:{server.port}") == {"runs": []}


def test_an_agent_is_asked_for_its_keys(start: Start, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(start, client) as server:
        client.configure(f"Host box\n  HostName 127.0.0.1\n  Port {server.port}")
        assert "with any key here" in refusal("box", PermissionDenied)[0]
        with an_agent(server, monkeypatch):
            assert ask("box") == {"runs": []}


def test_an_agent_key_that_identity_file_names_is_taken_with_identities_only(
    start: Start, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(start, client) as server:
        only = "\n  IdentitiesOnly yes"
        client.configure(
            f"Host box\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.user_key}{only}"
        )
        with an_agent(server, monkeypatch):
            lock = ["ssh-keygen", "-q", "-p", "-N", "secret words", "-f", str(server.user_key)]
            subprocess.run(lock, check=True)
            assert ask("box") == {"runs": []}
            server.user_key.with_suffix(".pub").unlink()
            assert ask("box") == {"runs": []}, "the public part is read from the private key"


def test_a_wrapper_that_is_named_is_the_interpreter_of_probe_and_run(start: Start, client: Client) -> None:
    with serving(start, client) as server:
        wrapper = server.home / "python3-torch"
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        wrapper.chmod(0o755)
        answer = ask("box", "probe", python="~/python3-torch")
        assert isinstance(answer, dict)
        assert answer["executable"] == str(wrapper)


def test_settings_of_an_included_file_and_of_match_count(start: Start, client: Client, tmp_path: Path) -> None:
    with serving(start, client) as server:
        (tmp_path / "more").write_text(f"Host box\n  HostName 127.0.0.1\n  Port {server.port}\n")
        client.configure(f'Include {tmp_path}/more\nMatch exec "true"\n  IdentityFile {server.user_key}\n')
        assert ask("box") == {"runs": []}


CONFIGURED = {
    "a connection that ssh shares": "  ControlMaster auto\n  ControlPath {home}/%C\n  ControlPersist 60",
    "Match originalhost": '  LogLevel ERROR\nMatch originalhost box exec "true"\n  ServerAliveInterval 5',
    "a host key under another name": "  HostKeyAlias there",
    "hashed known_hosts": "  HashKnownHosts yes",
    "IPv6": "  HostName ::1",
}


@pytest.mark.parametrize("title", CONFIGURED)
def test_a_host_is_reached_as_its_users_ssh_reaches_it(start: Start, client: Client, title: str) -> None:
    """And where its home folder has a space."""
    home = client.home.parent / "a home"
    home.mkdir()
    with start(environment={"PATH": PYTHONS, "HOME": str(home)}, lines=("ListenAddress ::1",)) as server:
        client.reaches(server)
        config = client.home / ".ssh" / "config"
        text = config.read_text().replace("  HostName 127.0.0.1\n", "") if title == "IPv6" else config.read_text()
        more = "" if title == "IPv6" else "\n"
        config.write_text(text.rstrip("\n") + "\n" + CONFIGURED[title].format(home=client.home) + more + "\n")
        key = server.known_line().split(" ", 1)[1]
        names = {"a host key under another name": "there", "IPv6": f"[::1]:{server.port}"}
        client.knows(f"{names.get(title, f'[127.0.0.1]:{server.port}')} {key}")
        if title == "hashed known_hosts":
            subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(client.known_hosts)], check=True, capture_output=True)
            assert "127.0.0.1" not in client.known_hosts.read_text()
        assert subprocess.run(
            ["ssh", "-F", str(config), "-o", f"UserKnownHostsFile={client.known_hosts}", "-o", "ControlPath=none",
             "box", "true"], stdin=subprocess.DEVNULL,
        ).returncode == 0, "OpenSSH reaches it"  # fmt: skip
        assert ask("box") == {"runs": []}


def test_settings_that_ssh_refuses_are_told_in_its_words(client: Client) -> None:
    client.configure("Host box\n  NoSuchOption yes\n")
    said, hint = refusal("box", ConfigError)
    assert "nosuchoption" in said.lower()
    assert "`ssh -G box`" in hint


SHELLS = [path for name in ("sh", "bash", "dash", "zsh", "fish", "tcsh") if (path := shutil.which(name))]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", ["echo 'a b' \"$HOME\"; printf '%s' '!x\\n'", "for i in 1 2\ndo echo `echo $i`\ndone"])
def test_a_line_is_one_word_of_single_quotes_in_every_shell(line: str, shell: str) -> None:
    sent = in_sh(line)
    inner = sent.removeprefix("sh -c '").removesuffix("'")
    assert not set(inner) & set("'!\n")
    assert "\\\\" not in inner
    ran = subprocess.run([shell, "-c", sent], capture_output=True, text=True, check=True)
    assert ran.stdout == subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout


def test_an_unknown_host_key_is_refused_with_the_command_that_adds_it(start: Start, client: Client) -> None:
    with serving(start, client) as server:
        client.knows()
        said, hint = refusal("box", HostKeyRefused)
        shown = subprocess.run(["ssh-keygen", "-lf", str(server.host_key)], capture_output=True, text=True, check=True)
        assert shown.stdout.split()[1] in said
        assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in hint
        command = hint.rpartition("add it with: ")[2]
        assert command == f"ssh-keyscan -p {server.port} -t ed25519 127.0.0.1 >> {client.known_hosts}"
        subprocess.run(["sh", "-c", command], check=True, capture_output=True)
        assert ask("box") == {"runs": []}
        assert "Accepted" not in server.log().split("Connection closed")[0]


def test_a_changed_host_key_is_refused_in_other_words_with_both_fingerprints(
    start: Start, client: Client, tmp_path: Path
) -> None:
    with serving(start, client) as server:
        other = make_key(tmp_path / "other").with_suffix(".pub").read_text().split()
        client.knows(f"[127.0.0.1]:{server.port} {other[0]} {other[1]}\n")
        said, hint = refusal("box", HostKeyRefused)
        assert said.count("SHA256:") == 2
        assert "another key than the one in known_hosts" in said
        assert "is unknown" not in said
        assert hint.endswith(f"ssh-keygen -f {client.known_hosts} -R '[127.0.0.1]:{server.port}'")


def test_a_key_that_does_not_open_is_told_with_how_to_put_one_there(
    start: Start, client: Client, tmp_path: Path
) -> None:
    with serving(start, client) as server:
        wrong = make_key(tmp_path / "wrong")
        client.configure(f"Host box\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {wrong}")
        said, hint = refusal("box", PermissionDenied)
        assert "box refuses the login" in said
        assert "`ssh-copy-id box`" in hint


def test_a_key_with_a_passphrase_is_not_asked_for_on_a_terminal(start: Start, client: Client) -> None:
    with serving(start, client) as server:
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret words", "-f", str(server.user_key)], check=True)
        said, hint = refusal("box", PermissionDenied)
        assert "passphrase" in said
        assert "ssh-add" in hint


def test_a_host_that_is_not_there_says_which_address_did_not_answer(client: Client) -> None:
    port = deaf_port()
    client.configure(f"Host box\n  HostName 127.0.0.1\n  Port {port}")
    assert f"nothing listens at 127.0.0.1 port {port}" in refusal("box", Unavailable)[0]


def test_a_port_where_something_else_answers_is_no_host(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        client.configure(f"Host box\n  HostName 127.0.0.1\n  Port {port}")
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()
        assert f"cannot be reached at 127.0.0.1 port {port}" in refusal("box", Unavailable)[0]


def test_a_host_without_python_is_unfit_and_another_one_can_be_named(
    start: Start, client: Client, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    with serving(start, client, str(tools)):
        said, hint = refusal("box", HostUnfit)
        assert said == "box has no python3 on the PATH of a login"
        assert "apt-get install python3" in hint
        assert ask("box", python=sys.executable) == {"runs": []}
        assert "has no ~/nowhere/python3" in refusal("box", HostUnfit, "~/nowhere/python3")[0]


def test_a_python_that_is_too_old_is_named_with_what_is_needed(start: Start, client: Client, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    # Every python reads the first lines of what is sent; this one says of itself that it is 3.6.
    (old / "python3").write_text(
        f'#!/bin/sh\nshift 2\nexec {sys.executable} -c "import sys; sys.version_info = (3, 6, 9)\n$1" "$2" "$3"\n'
    )
    (old / "python3").chmod(0o755)
    with serving(start, client, f"{old}:/usr/bin:/bin"):
        said, hint = refusal("box", HostUnfit)
        assert said == "box has python 3.6.9, and a run needs 3.10 or newer"
        assert "host.python" in hint


def test_an_account_that_runs_no_commands_is_told_from_a_host_that_is_down(start: Start, client: Client) -> None:
    with serving(start, client, PYTHONS, "ForceCommand echo this account is for files only; exit 1"):
        said, _ = refusal("box", HostUnfit)
        assert "does not run commands (exit code 1): this account is for files only" in said


def test_what_a_login_shell_prints_is_not_taken_for_an_answer(start: Start, client: Client) -> None:
    with serving(start, client, PYTHONS, 'ForceCommand echo "Welcome to box"; eval "$SSH_ORIGINAL_COMMAND"'):
        assert ask("box") == {"runs": []}
        shell = SshShell(parse_target("box"))
        assert shell.run("printf 'a\\nb'; printf c >&2; exit 3") == (3, "a\nb", "c")
        with pytest.raises(HostUnfit, match="moves no files by SFTP"):
            shell.get("/etc/hostname", limit=1 << 20)


def test_a_host_that_says_ever_more_is_heard_out_no_further_than_any_answer_goes(
    start: Start, client: Client, tmp_path: Path
) -> None:
    talker = tmp_path / "python3"
    talker.write_text("#!/bin/sh\nexec yes\n")
    talker.chmod(0o755)
    with serving(start, client):
        said, hint = refusal("box", HostUnfit, str(talker))
        assert said == "box printed more than 32 MB while it was asked for runs, so bench stopped reading"
        assert hint.startswith("`ssh box`; check what a login prints")
        assert ask("box") == {"runs": []}


@pytest.mark.parametrize("way", ["ProxyJump", "ProxyCommand"])
def test_a_jump_host_is_gone_through_and_its_key_is_verified_too(
    start: Start, client: Client, tmp_path: Path, way: str
) -> None:
    with serving(start, client) as server, sshd(tmp_path / "gate") as gate:
        jump = (
            "  ProxyJump gate\n" if way == "ProxyJump" else f"  ProxyCommand {sys.executable} {relay(tmp_path)} %h %p\n"
        )
        box = f"Host box\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.user_key}\n{jump}"
        hop = f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  IdentityFile {gate.user_key}\n"
        client.configure(box, hop)
        client.knows(server.known_line(), gate.known_line())
        assert ask("box") == {"runs": []}
        if way == "ProxyJump":
            assert "Accepted publickey" in gate.log()
            client.knows(server.known_line())
            said, hint = refusal("box", HostKeyRefused)
            assert f"[127.0.0.1]:{gate.port}" in said
            assert "ssh -o StrictHostKeyChecking=ask box true" in hint


def relay(folder: Path) -> Path:
    """A ProxyCommand: what netcat is to others."""
    path = folder / "relay.py"
    path.write_text(
        "import os, socket, sys, threading\n"
        "far = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def back():\n"
        "    while data := far.recv(65536): os.write(1, data)\n"
        "    os._exit(0)\n"
        "threading.Thread(target=back, daemon=True).start()\n"
        "while data := os.read(0, 65536): far.sendall(data)\n"
    )
    return path


def test_a_connection_that_was_cut_is_made_again(start: Start, client: Client) -> None:
    with serving(start, client) as server, Wire(server.port) as wire:
        client.reaches(server, wire.port)
        shell = SshShell(parse_target("box"))
        assert shell.ask("runs", {}) == {"runs": []}
        wire.cut(down_s=PATIENCE_S)
        with pytest.raises(Unavailable, match=r"was lost|cannot be reached"):
            shell.ask("runs", {})
        wire.down_until = 0
        assert shell.ask("runs", {}) == {"runs": []}
        shell.close()


def test_files_go_there_and_come_back_and_what_is_not_there_is_nothing(start: Start, client: Client) -> None:
    with serving(start, client) as server:
        shell = SshShell(parse_target("box"))
        data = bytes(range(256)) * 4096
        shell.put(data, str(server.home / "file"))
        assert (server.home / "file").read_bytes() == data
        assert shell.get(str(server.home / "file"), limit=1 << 24) == data
        assert shell.get(str(server.home / "nothing"), limit=1 << 20) is None
        with pytest.raises(HostUnfit, match="cannot be written"):
            shell.put(b"", "/proc/nothing")
        shell.close()


def test_a_file_that_was_asked_for_ahead_of_a_lost_connection_is_no_traceback() -> None:
    script = (
        "import threading, orchestrator.adapters.hosts.ssh\n"
        "def _prefetch_thread(): raise OSError('Socket is closed')\n"
        "def another(): raise OSError('of its own')\n"
        "for work in (_prefetch_thread, another):\n"
        "    thread = threading.Thread(target=work)\n"
        "    thread.start()\n"
        "    thread.join()\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr
    assert "of its own" in said
    assert "Socket is closed" not in said
