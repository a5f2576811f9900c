"""The lease of an agent's own DF entry: renewed at half of it, for as long as the agent is open.

Owns: when it is renewed, and what happens when that comes too late. Leaves to others: the calls (`client.df`), who awaits
the task (`client.agent`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from gagent_grpc.acl.descriptions import DFAgentDescription
from gagent_grpc.errors import AgentAlreadyRegistered, AgentNotRegistered, BusError, Unavailable

if TYPE_CHECKING:
    from gagent_grpc.client.df import DfClient

_logger = logging.getLogger(__name__)

_SHORTEST = 0.1
"""Seconds between renewals at least, however short the lease is."""


class Lease:
    """The lease that the bus granted last; none before it is told of one."""

    def __init__(self, name: str, entry: Callable[[], DFAgentDescription | None]) -> None:
        """Make a lease of the agent ``name``; ``entry`` returns what it offers, None when it offers nothing."""
        self._name = name
        self._entry = entry
        self._seconds: float | None = None
        self._changed = asyncio.Event()

    def granted(self, seconds: float | None) -> None:
        """The bus keeps the entry for ``seconds`` from now on; None for no end, or for no entry."""
        self._seconds = seconds
        self._changed.set()

    async def keep(self, df: DfClient) -> None:
        """Renew the lease again and again; ends only when it is cancelled."""
        pause: float | None = None
        while True:
            self._changed.clear()
            seconds = self._seconds
            wait = None if seconds is None else max(_SHORTEST, seconds / 2 if pause is None else pause)
            pause = None
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
                continue
            except TimeoutError:
                pass
            try:
                await self._renew(df)
            except Unavailable:
                # With the next session the entry is installed anew; until then it is tried more often.
                pause = (seconds or 0.0) / 8
            except BusError as error:
                _logger.warning("%s: the lease of the DF entry is not renewed: %s", self._name, error)
                self._seconds = None

    async def _renew(self, df: DfClient) -> None:
        try:
            await df.renew()
        except AgentNotRegistered:
            # It has ended, as after a long sleep of the machine, and with it the entry.
            entry = self._entry()
            if entry is None:
                self._seconds = None
                return
            _logger.warning("%s: the lease of the DF entry had ended; it is registered anew", self._name)
            with contextlib.suppress(AgentAlreadyRegistered):
                await df.register(entry)
