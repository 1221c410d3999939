"""A network that takes its time: carries Ethernet frames between devices after a fixed delay.

    python relay.py SECONDS HUB DEVICE...

The devices are the near ends of veth pairs, in the namespace HUB; the far end of each is the only
device of a host's namespace, named by DEVICE=HOST. Started by `namespaces.network`, since kernels
need not have netem. A switch, as a bridge is: it learns behind which device an address is.
"""

import collections
import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET."""
DEVICE = "eth0"
"""What the network is called inside every host's namespace."""

PRIORITY = -10
"""Whoever may make namespaces may have that, too."""

ETHTOOL = 0x8946
"""SIOCETHTOOL."""
OFFLOADS = (0x17, 0x19, 0x1F, 0x24)
"""What makes frames larger than a wire takes or leaves checksums to the hardware: ETHTOOL_STXCSUM,
_SSG, _STSO and _SGSO. There is no hardware, and a frame that is read is what is sent on."""
SOL_PACKET, IGNORE_OUTGOING, EVERY_PROTOCOL = 263, 23, 3
SO_RCVBUFFORCE = 33
FRAME = 65536


def enter(name: str) -> None:
    """Moves this process, which has one thread yet, into a namespace; and before all others, so
    that other tests do not change what it takes."""
    os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    with Path(f"/run/netns/{name}").open() as opened:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(opened.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")


def whole_frames(device: str) -> None:
    """Switches off what would not survive being read and written by a program."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", device.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, ETHTOOL, request)


def opened(device: str) -> socket.socket:
    """A socket that reads and writes whole frames of a device."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
    made.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    made.bind((device, 0))
    made.setblocking(False)
    return made


def carry(ports: list[socket.socket], delay: float) -> None:
    """Frames go on, after the delay, to where their receiver was last heard, or to all others."""
    behind: dict[bytes, socket.socket] = {}
    under_way: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select(ports, [], [], wait)
        now = time.monotonic()
        for port in readable:
            try:
                while True:
                    frame = port.recv(FRAME)
                    behind[frame[6:12]] = port
                    under_way.append((now + delay, port, frame))
            except BlockingIOError:
                pass
        while under_way and under_way[0][0] <= time.monotonic():
            _, port, frame = under_way.popleft()
            known = behind.get(frame[:6])
            for to in [known] if known else [p for p in ports if p is not port]:
                to.send(frame)


def main(seconds: str, hub: str, *devices: str) -> None:
    for device in devices:
        enter(device.partition("=")[2])
        whole_frames(DEVICE)
    enter(hub)
    ports = [opened(device.partition("=")[0]) for device in devices]
    print("ready", flush=True)
    carry(ports, float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
