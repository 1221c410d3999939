"""Hosts on one machine that can only reach each other by a network of their own.

Each is a network namespace with a veth pair to a common bridge, or to a relay that takes its time.
That takes root and iproute2.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import relay
from tests.relay import DEVICE

SETTINGS = ("net.ipv4.tcp_slow_start_after_idle=0", "net.ipv4.tcp_congestion_control=reno")
"""A connection keeps its speed between two steps, as one that is in use all the time does, and does
not slow down now and then to find out what the network can do, as with BBR."""


def missing() -> str:
    """Why there can be no namespaces here; nothing if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "network namespaces need iproute2 (ip and tc)"
    name = f"parley{os.getpid()}probe"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"network namespaces cannot be made here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert not done.returncode, f"ip {' '.join(words)}: {done.stderr}"


@contextmanager
def network(hosts: int, rate: str = "", delay: float = 0.0) -> Iterator[list[str]]:
    """The names of so many namespaces, host i with the address 10.77.0.i+1.

    `rate` (as tc writes it, 20mbit) is the most that each host can send, `delay` the seconds that
    whatever it sends is under way.
    """
    stem = f"pl{os.getpid() % 100000}"
    names = [f"{stem}h{number}" for number in range(hosts)]
    hub = f"{stem}hub"
    carrier: subprocess.Popen[str] | None = None
    try:
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", hub, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ends = [f"{name}v", "netns", hub, "type", "veth", "peer", "name", DEVICE, "netns", name]
            ip("link", "add", *ends)
            if not delay:
                ip("-n", hub, "link", "set", f"{name}v", "master", "bridge")
            ip("-n", hub, "link", "set", f"{name}v", "up")
            ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", DEVICE)
            ip("-n", name, "link", "set", DEVICE, "up")
            ip("-n", name, "link", "set", "lo", "up")
            for setting in SETTINGS:
                ip("netns", "exec", name, "sysctl", "-qw", setting)
            if rate:
                # Single packets, or acknowledgements wait behind long trains of data.
                ip("-n", name, "link", "set", DEVICE, "gso_max_segs", "1")
                limit = ["root", "tbf", "rate", rate, "burst", "64kb", "limit", "32mb"]
                words = ["netns", "exec", name, "tc", "qdisc", "add", "dev", DEVICE, *limit]
                ip(*words)
        if delay:
            devices = [f"{name}v={name}" for name in names]
            words = [sys.executable, relay.__file__, str(delay), hub, *devices]
            carrier = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert carrier.stdout and carrier.stdout.readline() == "ready\n"
        yield names
    finally:
        if carrier:
            carrier.kill()
            carrier.communicate()
        for name in [*names, hub]:  # the devices go with their namespaces
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def enter(name: str) -> None:
    """Moves this process, which has one thread yet, into a namespace, and before all others."""
    relay.enter(name)
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE


def sent() -> int:
    """Bytes that have left this process's namespace so far."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == DEVICE:
            return int(numbers.split()[8])
    raise ValueError(f"no {DEVICE}")
