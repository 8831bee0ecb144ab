"""Two simulated hosts with a cable between them, which can be bad in every way that we know of.

    python -m tools.faults.network --how black-hole --after 2 --seconds 20 -- command      (it runs on the left host)

`with Network() as net:` gives `net.left` and `net.right`, two `Host`s: network namespaces with a veth pair, a host
name and an /etc/hosts of their own; files, shared memory and PIDs are those of this machine. Addresses are 10.x and
exist inside only. All faults are made at the left host, where the trainer runs, and each is a `with` block; several
may hold at once. Processes are started with `Host.start`.

Needs root, and ip, tc, nft, nsenter. The kernel ends a namespace with its last process: nothing is left by a guard
that was killed but processes, and those are swept up like all else.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tools.faults import guard, kernel, shell
from tools.faults.fault import Fault

ADDRESSES = {"left": "10.77.0.1", "right": "10.77.0.2"}
NAME = "collector.test"  # by which the left host knows the right one, until it is forgotten
NOWHERE = "10.77.0.99"  # nobody has this address
HOWS = ("black-hole", "loss", "reset", "cable-out", "slow", "no-name", "silent-names")
CALL_S = 30.0  # for any one command of the guard
# an RST reaches both ends of what is open already; of what is new it refuses the first packet
RULES = {
    "black_hole": "drop",
    "loss": "numgen random mod 100 < {percent} drop",
    "reset": "tcp flags & rst == 0 reject with tcp reset",
}


def why_not() -> str | None:
    """Why these faults cannot be made here; None where they can."""
    if reason := kernel.why_no_mounts():
        return reason
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    for program, package in {
        "ip": "iproute2",
        "tc": "iproute2",
        "nft": "nftables",
        "nsenter": "util-linux",
    }.items():
        if shutil.which(program, path=path) is None:
            return f"needs {program} (Debian: {package})"
    return None


class Host:
    """One of the two. Its processes end with the fault, at the latest."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.address = ADDRESSES[name]
        self._pid = pid

    def words(self, *command: str, cwd: str | os.PathLike[str] = "/") -> list[str]:
        """A command line that runs `command` on this host; its PID is that of the process that is started."""
        enter = [
            "nsenter",
            "--target",
            str(self._pid),
            "--net",
            "--mount",
            "--uts",
            f"--wdns={os.fspath(cwd)}",
        ]
        return [*enter, "--", *command]

    def start(
        self, command: Sequence[str], *, cwd: str | os.PathLike[str] | None = None, **more: Any
    ) -> subprocess.Popen[Any]:
        """As `subprocess.Popen`, there."""
        return subprocess.Popen(self.words(*command, cwd=os.getcwd() if cwd is None else cwd), **more)

    def run(self, *command: str, timeout_s: float = CALL_S) -> str:
        """What a command printed there; it must end well."""
        given: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(self.words(*command), timeout=timeout_s, check=False, **given)
        if done.returncode:
            raise RuntimeError(f"`{' '.join(command)}` on {self.name}: {done.stdout.strip()}")
        return str(done.stdout)


class Network(Fault):
    """Both hosts, and what may be wrong between them."""

    kind: ClassVar[str] = "network"
    left: Host
    right: Host

    def _opened(self, facts: dict[str, Any]) -> None:
        self.path = self.base
        self.left, self.right = (Host(name, facts[name]) for name in ("left", "right"))

    @contextlib.contextmanager
    def _wrong(self, what: str, **how: Any) -> Iterator[None]:
        self._ask("begin", what=what, how=how)
        try:
            yield
        finally:
            self._ask("end_of", what=what)

    def black_hole(self) -> contextlib.AbstractContextManager[None]:
        """Every packet vanishes; connections stay open and silent, new ones never come about."""
        return self._wrong("black_hole")

    def loss(self, percent: int = 20) -> contextlib.AbstractContextManager[None]:
        """So many of all packets vanish, in both directions."""
        return self._wrong("loss", percent=percent)

    def reset(self) -> contextlib.AbstractContextManager[None]:
        """Whoever sends is answered that there is no such connection."""
        return self._wrong("reset")

    def cable_out(self) -> contextlib.AbstractContextManager[None]:
        """The link is down: network unreachable at once."""
        return self._wrong("cable_out")

    def slow(self, kbit: int = 100) -> contextlib.AbstractContextManager[None]:
        """What the left host sends passes at this rate."""
        return self._wrong("slow", kbit=kbit)

    def no_name(self, *, silent: bool = False) -> contextlib.AbstractContextManager[None]:
        """The left host does not know `NAME` any more; `silent`: who asks gets no answer instead of an error."""
        return self._wrong("no_name", silent=silent)


class Holder(guard.Holder):
    """The guard's side."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self._hosts: dict[str, int] = {}

    def open(self) -> dict[str, Any]:
        for name in ADDRESSES:
            self._hosts[name] = self._make_host(name)
        right = str(self._hosts["right"])
        # Made inside the left one from the first moment: nothing of it is ever seen outside.
        self._call(
            "left", "ip", "link", "add", "veth", "type", "veth", "peer", "name", "veth", "netns", right
        )
        for name in ADDRESSES:
            self._call(name, "ip", "address", "add", f"{ADDRESSES[name]}/24", "dev", "veth")
            for link in ("lo", "veth"):
                self._call(name, "ip", "link", "set", link, "up")
        return dict(self._hosts)

    def _make_host(self, name: str) -> int:
        """A process that keeps the namespaces, and ends with the guard."""
        etc = self.base / name
        etc.mkdir()
        self._write_names(etc)
        us = os.getpid()
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                kernel.die_with_parent(us)
                _be_host(name, etc)
                os.write(told, b"1")
                for handle in (0, 1, ready, told):  # the owner's: it waits for their end
                    os.close(handle)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.close(told)
        try:
            if not select.select([ready], [], [], CALL_S)[0] or not os.read(ready, 1):
                raise RuntimeError(f"host {name} could not be made; see standard error")
        finally:
            os.close(ready)
        return pid

    def _write_names(self, etc: Path, *, names: bool = True, silent: bool = False) -> None:
        """In place: what is bound is the file, not its path."""
        hosts = "127.0.0.1 localhost\n" + (f"{ADDRESSES['right']} {NAME}\n" if names else "")
        (etc / "hosts").write_text(hosts)
        server = NOWHERE if silent else "127.0.0.1"  # where nobody listens, which is said at once
        (etc / "resolv.conf").write_text(f"nameserver {server}\noptions timeout:5 attempts:2\n")

    def _call(self, host: str, *command: str, data: str | None = None) -> None:
        enter = ("nsenter", "--target", str(self._hosts[host]), "--net", "--")
        given: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        env = {**os.environ, "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"}
        done = subprocess.run([*enter, *command], input=data, timeout=CALL_S, env=env, check=False, **given)
        if done.returncode:
            raise RuntimeError(f"`{' '.join(command)}` on {host}: {done.stdout.strip()}")

    def do_begin(self, what: str, how: dict[str, Any]) -> None:
        if what in RULES:
            rule = RULES[what].format(**how)
            chains = "".join(
                f"chain {hook} {{ type filter hook {hook} priority 0; "
                f'{"oif" if hook == "output" else "iif"}name "veth" {rule}; }}\n'
                for hook in ("input", "output")
            )
            self._call("left", "nft", "-f", "-", data=f"table inet fault_{what} {{\n{chains}}}\n")
        elif what == "cable_out":
            self._call("left", "ip", "link", "set", "veth", "down")
        elif what == "slow":
            rate = ("rate", f"{how['kbit']}kbit", "burst", "4kb", "latency", "2000ms")
            self._call("left", "tc", "qdisc", "add", "dev", "veth", "root", "tbf", *rate)
        elif what == "no_name":
            self._write_names(self.base / "left", names=False, silent=how["silent"])
        else:
            raise ValueError(f"no fault is called {what!r}")

    def do_end_of(self, what: str) -> None:
        if what in RULES:
            self._call("left", "nft", "delete", "table", "inet", f"fault_{what}")
        elif what == "cable_out":
            self._call("left", "ip", "link", "set", "veth", "up")
        elif what == "slow":
            self._call("left", "tc", "qdisc", "del", "dev", "veth", "root")
        elif what == "no_name":
            self._write_names(self.base / "left")

    def close(self) -> list[str]:
        left = super().close()  # the hosts are among those that live on them
        for pid in self._hosts.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        return left


def _be_host(name: str, etc: Path) -> None:
    """In a forked child: namespaces of one's own, with names of one's own."""
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS)
    kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
    for other in reversed(kernel.mounts("logclient-fault-")):  # they must not be busy because of a copy here
        with contextlib.suppress(OSError):
            kernel.unmount(other.point, kernel.MNT_DETACH)
    for file in ("hosts", "resolv.conf"):
        point = f"/etc/{file}"
        if not os.path.exists(point):
            raise FileNotFoundError(f"{point} is not there, so nothing can be bound over it")
        kernel.mount(str(etc / file), point, "none", kernel.MS_BIND)
    socket.sethostname(f"{name}.test")


def main(arguments: list[str] | None = None) -> int:
    parser = shell.parser("network", "Run a command on a host whose network is bad for a while. Needs root.")
    parser.add_argument("--how", choices=HOWS, default=HOWS[0], help="what is wrong (default black-hole)")
    given = parser.parse_args(arguments)
    if reason := why_not():
        parser.error(reason)
    with Network() as net, contextlib.ExitStack() as wrong:
        faults: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
            "black-hole": net.black_hole,
            "loss": net.loss,
            "reset": net.reset,
            "cable-out": net.cable_out,
            "slow": net.slow,
            "no-name": net.no_name,
            "silent-names": lambda: net.no_name(silent=True),
        }
        given.command = net.left.words(*given.command, cwd=os.getcwd()) if given.command else []

        def begin() -> None:
            wrong.enter_context(faults[given.how]())

        return shell.run(net, given, begin=begin, end=wrong.close)


if __name__ == "__main__":
    sys.exit(main())
