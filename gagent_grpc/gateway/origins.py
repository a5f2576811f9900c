"""Where a web page must be from that may connect: the gateway's own pages, and those that its operator names.

A browser lets any page connect to any address, also to one of this machine, and tells where the page is from. It is compared
with addresses that the gateway knows of itself, never with the `Host` of the request, which a page can choose by a name of
its own that leads here.

Owns: addresses and origins as values. Pure. Leaves to others: who asks (`gateway.admission`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from gagent_grpc.errors import ConfigurationError, shown

_PORTS = {"http": 80, "https": 443}
_NAMES_OF_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"\[[0-9a-f:.]+\]|[a-z0-9._-]+")


class Address(NamedTuple):
    """Where a gateway listens."""

    host: str
    """Name or address, without brackets."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it can be reached from this machine only."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_any(self) -> bool:
        """Whether it stands for every address of this machine."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address in ``text``, `HOST:PORT`.

        Raises:
            ConfigurationError: It is none.
        """
        host, colon, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        is_digits = port.isascii() and port.isdecimal() and len(port) <= 5
        if not colon or not bare or not is_digits or int(port) > 65535 or (":" in bare and bare == host):
            raise ConfigurationError(
                f"web address {shown(text)}: expected HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080"
            )
        return cls(bare, int(port))


def normal_origin(text: str) -> str | None:
    """Return an origin, `SCHEME://HOST[:PORT]`, in the one form in which it is compared; None for what is none."""
    try:
        parts = urlsplit(text.strip().lower())
        port = parts.port
    except ValueError:
        return None
    host = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc
    if parts.scheme not in _PORTS or not _HOST.fullmatch(host) or parts.path or parts.query or parts.fragment:
        return None
    return f"{parts.scheme}://{host}:{port if port is not None else _PORTS[parts.scheme]}"


class Origins:
    """Origins from which pages may connect."""

    def __init__(self, own: Address, others: Iterable[str] = ()) -> None:
        """Allow the pages of the gateway at ``own``, and those of ``others``.

        Raises:
            ConfigurationError: One of them is no origin.
        """
        hosts = _NAMES_OF_LOOPBACK if own.is_loopback else () if own.is_any else (str(own).rpartition(":")[0],)
        self._allowed = {normal_origin(f"http://{host}:{own.port}") for host in hosts}
        for one in others:
            found = normal_origin(one)
            if found is None:
                raise ConfigurationError(
                    f"web origin {shown(one)}: expected SCHEME://HOST[:PORT] alone, such as https://console.example"
                )
            self._allowed.add(found)

    def allows(self, origin: str) -> bool:
        """Whether a page of ``origin``, as the header says it, may connect."""
        found = normal_origin(origin)
        return found is not None and found in self._allowed
