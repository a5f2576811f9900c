"""Messages that wait for a behaviour: a bounded box for each, from which it takes what it asks for.

Owns: the order, the bound, and waiting on either side. Leaves to others: which box a message is for
(`client.activity`), and when it counts as handled (`client.behaviours`, `client.deliveries`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from gagent_grpc.acl.template import MessageTemplate
from gagent_grpc.client.handlers import own_platform
from gagent_grpc.client.lanes import Job
from gagent_grpc.client.message import Received


class Letter:
    """One message in a box, and the delivery that it came with."""

    __slots__ = ("job", "message")

    def __init__(self, message: Received, job: Job) -> None:
        self.message = message
        self.job = job


class LetterBox:
    """What one behaviour receives, oldest first."""

    def __init__(self, template: MessageTemplate, size: int) -> None:
        """Make an empty box for messages that fit ``template``, with room for ``size`` of them."""
        self.template = template
        self._size = size
        self._letters: deque[Letter] = deque()
        self._closed = False
        self._came = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, letter: Letter) -> bool:
        """Put a letter in, when there is room; return False when the box was closed instead."""
        while len(self._letters) >= self._size and not self._closed:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            return False
        self._letters.append(letter)
        self._came.set()
        # A new one for each letter: whoever waits for another kind must not wake for this one again.
        self._came = asyncio.Event()
        return True

    async def take(self, template: MessageTemplate | None, timeout: float | None) -> Letter | None:
        """Take the oldest letter that fits ``template``; None when there is none within ``timeout`` seconds.

        Cancelled, it takes nothing. Several may wait at the same time; each letter goes to one of them.
        """
        try:
            async with asyncio.timeout(timeout):
                while (letter := self._find(template)) is None:
                    await self._came.wait()
                return letter
        except TimeoutError:
            return None

    def _find(self, template: MessageTemplate | None) -> Letter | None:
        for letter in self._letters:
            if template is None or template.matches(letter.message, own_platform(letter.message)):
                # Over with the walk as it changes.
                self._letters.remove(letter)
                self._room.set()
                return letter
        return None

    def close(self) -> list[Letter]:
        """Take nothing any more; return what nobody has taken."""
        self._closed = True
        self._room.set()
        left = list(self._letters)
        self._letters.clear()
        return left
