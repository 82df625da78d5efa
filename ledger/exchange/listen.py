"""Listening on a TCP address, for the servers that the command starts."""

from __future__ import annotations

import ipaddress
import socket

from ..errors import BitwitnessError

SLOWEST = 20.0
"""Seconds until a request's head must be here, from the connection or a later request's first byte; and then until its
body must, of which no server here takes more than a few MiB.
"""


class CannotListen(BitwitnessError):
    """The address cannot be listened on."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host} port {port}: {reason}; choose another with --host or --port")
        self.host = host
        self.port = port


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises CannotListen."""
    if not 0 <= port <= 65535:
        raise CannotListen(host, port, "not a port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off only where the protocol is named: without, each answer takes 40 ms more.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise CannotListen(host, port, (error.strerror or str(error)).lower()) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a listening socket, with a slash at its end."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
