"""Connections between hosts: the network interface that gloo uses, and how soon a silent host counts as lost.

gloo listens at the address of this machine's own name. On many machines that is a loopback address (Debian writes it into
/etc/hosts), which other hosts cannot reach. And a host that vanishes (power, cable) closes no connection: without the limit
here, the others would wait for it until gloo's timeout of 10 minutes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys

LOST_S = 30  # without an answer from a host, its connections end
IDLE_S, PROBE_S = (
    10,
    5,
)  # silence after which the system asks whether the other host is there, and between two questions
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


def choose_interface(host: str, port: int) -> None:
    """Make gloo use the interface on the way to rank 0's host, unless GLOO_SOCKET_IFNAME is set or rank 0 is on this host."""
    if "GLOO_SOCKET_IFNAME" in os.environ or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        own = probe.getsockname()[0]
        if own.startswith("127."):
            return
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                if address_of(name, probe) == own:
                    os.environ["GLOO_SOCKET_IFNAME"] = name
                    return


def address_of(interface: str, probe: socket.socket) -> str:
    """Return the IPv4 address of a network interface; raise OSError if it has none."""
    import fcntl

    found = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", interface[:15].encode()))
    return socket.inet_ntoa(found[20:24])


def end_silent_connections() -> int:
    """Let the system end each TCP connection of this process whose other host is silent for LOST_S; return how many it has.

    Call it after connections were made. The system of the other host answers by itself, however busy its programs are.
    """
    if not sys.platform.startswith("linux"):
        return 0
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # not a socket, not connected, or closed meanwhile
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
                    continue
                found.getpeername()
                found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in (
                    (socket.TCP_KEEPIDLE, IDLE_S),
                    (socket.TCP_KEEPINTVL, PROBE_S),
                    (socket.TCP_KEEPCNT, (LOST_S - IDLE_S) // PROBE_S),
                    (socket.TCP_USER_TIMEOUT, 1000 * LOST_S),
                ):
                    found.setsockopt(socket.IPPROTO_TCP, option, value)
                count += 1
    return count
