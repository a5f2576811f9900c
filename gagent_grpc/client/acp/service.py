"""`ACPService`: connections, broadcasts and delegated tasks of one agent, in the words of the ACP interface.

Owns: this interface, thin over `Agent`. Leaves to others: messages (`client.acp.exchanging`), tasks, which the bus keeps
(`client.tasks`), one connection (`client.acp.connection`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from gagent_grpc.acl.aid import split_aid
from gagent_grpc.acl.descriptions import AMSAgentDescription, ServiceDescription
from gagent_grpc.acp.message import ACPMessage, ACPMessageType, ACPMetadata, DelegateMessage
from gagent_grpc.acp.tasks import DelegatedTask, TaskState
from gagent_grpc.client.acp.connection import ACPConnection
from gagent_grpc.client.acp.handling import ACPHandler
from gagent_grpc.client.acp.message import ReceivedACP
from gagent_grpc.client.agent import Agent
from gagent_grpc.client.message import Receipt
from gagent_grpc.client.task_context import TaskContext
from gagent_grpc.config import ClientLimits
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import (
    AgentNotRegistered,
    BusError,
    DeliveryRefused,
    InvalidArgument,
    MessageTooLarge,
    PreconditionFailed,
    TaskRefused,
    Unavailable,
)

_logger = logging.getLogger(__name__)

_BROADCAST = 100
"""Targets of one message of a broadcast."""
_OPEN = tuple(state for state in TaskState if not state.final)
_WORKED_ON = (TaskState.ACCEPTED, TaskState.RUNNING, TaskState.INPUT_REQUIRED)
_HEARTBEATS_OF_USE = 3


class ACPService:
    """What an agent does in ACP: connect, send, broadcast, delegate, serve. Open while its block lasts, or from `start` to
    `stop`.

        async with ACPService("planner") as service:
            task_id = await service.delegate_task("data_analyst@local", "Compare the two offers", {"limit": 3})
            while (status := await service.check_task_status(task_id))["status"] not in ("completed", "failed"):
                await asyncio.sleep(1)

    Handlers are put into `handlers` by type, at any time:
    ``service.handlers[ACPMessageType.REQUEST] = answer``. What one returns for a REQUEST is the RESPONSE; what one returns
    for a DELEGATE is the result of the task, which is accepted before it is called. What no handler is for waits for
    `ACPConnection.recv` where the agents are connected; else a REQUEST is answered by an ERROR.
    """

    def __init__(
        self,
        agent_id: str | Agent,
        *,
        bus: str | None = None,
        heartbeat_interval: float = 30.0,
        services: Sequence[str | ServiceDescription] = (),
        limits: ClientLimits | None = None,
    ) -> None:
        """Make a service; nothing is connected yet.

        Args:
            agent_id: Name of the agent, `name` or `name@platform`; or an `Agent`, with which the other arguments but the
                interval are settled. Handlers of its own come first; tasks that none of them takes are this service's.
            bus: `HOST:PORT[,HOST:PORT]`; by default what `GAGENT_BUS` says, else 127.0.0.1:50051.
            heartbeat_interval: Seconds between the HEARTBEATs that connected agents get; 0 for none.
            services: What it offers in the DF.
            limits: Intervals and bounds; the defaults of `ClientLimits`.

        Raises:
            InvalidName: ``agent_id`` is no valid name.
            InvalidArgument: ``heartbeat_interval`` is no such number, or another argument is given beside an `Agent`.
        """
        if not (isinstance(heartbeat_interval, int | float) and 0 <= heartbeat_interval < math.inf):
            text = f"heartbeat_interval {heartbeat_interval!r}; expected seconds, or 0 for none"
            raise InvalidArgument(text, field="heartbeat_interval")
        if isinstance(agent_id, Agent):
            if bus is not None or services or limits is not None:
                raise InvalidArgument("bus, services or limits beside an Agent, which has its own", field="agent_id")
            self.agent = agent_id
        else:
            self.agent = Agent(agent_id, bus=bus, services=services, limits=limits)
        self.connections: dict[str, ACPConnection] = {}
        """Open connections by the name of the peer: the bare name for an agent of this platform."""
        self.handlers: dict[ACPMessageType, ACPHandler] = {}
        """Handlers by type, for a `ReceivedACP` each; `async def`, or `def`, which runs in a thread."""
        self.heartbeat_interval = heartbeat_interval
        """Seconds between HEARTBEATs; a change counts from the next `start`."""
        self._owns_agent = False
        self._watcher: asyncio.Task[None] | None = None
        self._opening = False
        self._stop_beating: Callable[[], object] = lambda: None
        self.agent._acp.attach(self.handlers, self._claim)
        self.agent.on_delegate(self._work)

    @property
    def agent_id(self) -> str:
        """`name@platform`; the bare name before the first session."""
        return self.agent.aid

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the agent, unless it is open, and begin with heartbeats.

        Raises:
            PreconditionFailed: The service has been started, or is being started.
            BusUnreachable, AgentAlreadyRegistered, BusError: As for opening an `Agent`.
        """
        if self._watcher is not None or self._opening:
            raise PreconditionFailed(f"{self.agent.name}: the service has been started already")
        self._owns_agent = self.agent._keeper is None
        if self._owns_agent:
            # Whoever starts it meanwhile would take the agent for one that somebody else opened.
            self._opening = True
            try:
                await self.agent.__aenter__()
            finally:
                self._opening = False
        self._watcher = asyncio.create_task(self._watch())
        if self.heartbeat_interval:
            self._stop_beating = self.agent.every(self.heartbeat_interval, self._beat).cancel

    async def stop(self) -> None:
        """Close every connection, and the agent, unless it was open before `start`. Idempotent."""
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        self._stop_beating()
        if self._owns_agent:
            # Before the connections: what nobody has received is for the next session, and not for a handler of this one.
            self.agent.pause()
        for connection in list(self.connections.values()):
            connection.close()
        watcher.cancel()
        try:
            await asyncio.wait({watcher})
        finally:
            if self._owns_agent:
                await self.agent.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def wait(self) -> None:
        """Wait until the session is over for good; as `Agent.wait`."""
        await self.agent.wait()

    async def _watch(self) -> None:
        """Tell whoever waits on a connection when there will be no session any more."""
        why: BusError | None = None
        try:
            await self.agent.wait()
        except BusError as error:
            why = error
        for connection in list(self.connections.values()):
            connection.close(why)

    async def _beat(self) -> None:
        """Send a HEARTBEAT to each peer. One that is not there any more is connected no longer."""
        ttl = self.heartbeat_interval * _HEARTBEATS_OF_USE
        beat = ACPMessage(type=ACPMessageType.HEARTBEAT, metadata=ACPMetadata(ttl=ttl))
        for target, receipt in (await self.broadcast(beat, list(self.connections), transient=True)).items():
            connection = self.connections.get(target)
            if receipt.outcome is Outcome.NO_SUCH_AGENT and connection is not None:
                _logger.info("%s: %s is gone; its connection is closed", self.agent.name, target)
                connection.close(AgentNotRegistered(target))

    # ---- connections -----------------------------------------------------------------------------------------------

    async def connect(self, target: str) -> ACPConnection:
        """Return the connection with an agent; the same one as long as it is open.

        Args:
            target: The agent, `name` or `name@platform`. It need not have a session: its mail waits for it.

        Raises:
            InvalidName: It is no agent's name.
            AgentNotRegistered: Nobody has the name. (Whether an agent of another platform is there, sending tells.)
            PreconditionFailed: The service is not started.
            BusError: The AMS was not reached.
        """
        self._check_started()
        split_aid(target)
        name = self._bare(target)
        if "@" not in name and not await self.agent.ams.search(AMSAgentDescription(name=name)):
            raise AgentNotRegistered(target)
        connection = self.connections.get(name)
        if connection is None:
            connection = ACPConnection(self.agent, name, self.agent._limits, closed=self._forget)
            self.connections[name] = connection
        return connection

    def _forget(self, connection: ACPConnection) -> None:
        if self.connections.get(connection.target) is connection:
            del self.connections[connection.target]

    def _claim(self, message: ReceivedACP, take: Callable[[], None], give_back: Callable[[], None]) -> bool:
        connection = self.connections.get(self._bare(message.source or ""))
        if connection is None:
            return False
        connection.heard(message, take, give_back)
        return True

    # ---- sending ---------------------------------------------------------------------------------------------------

    async def send_message(self, target: str, message: ACPMessage) -> ACPMessage:
        """Send a message to a delivery address, and return it as it was sent: with its id, source, time and metadata.

        Args:
            target: An agent, `role:TYPE` or `topic:NAME`. No connection is needed.
            message: What is sent; its own target does not matter.

        Raises:
            DeliveryRefused: The target was not reached.
            InvalidArgument, MessageTooLarge, PreconditionFailed, BusError: As `Agent.send_acp`.
        """
        made = self.agent.filled(message.replace(target=target))
        await self.agent.send_acp(made)
        return made

    async def broadcast(
        self, message: ACPMessage, targets: Iterable[str] | None = None, *, transient: bool = False
    ) -> dict[str, Receipt]:
        """Send a message to several agents at the same time, and return what became of it for each of them.

        One that is not reached does not keep it from the others: its receipt says why (`delivered`, `outcome`, `detail`).

        Args:
            message: What is sent; its own target does not matter.
            targets: Agents; None for every connected agent but this one and ephemeral ones, whether there is a connection
                with it or not. One name alone is a list of one.
            transient: Need not survive a restart of the bus.

        Returns:
            A receipt for each target, by the name that was given; of None by `name@platform`.

        Raises:
            InvalidArgument: The message has a value that cannot be sent, or a target is no text.
            PreconditionFailed: The service is not started, or was stopped meanwhile.
            BusError: The session is over, or the AMS was not reached.
        """
        self._check_started()
        if targets is None:
            entries = await self.agent.ams.search_all()
            targets = [one.name for one in entries if one.connected and one.name != self.agent.aid]
        # Text is a series of texts, too: its letters are nobody's names.
        names = [targets] if isinstance(targets, str) else list(dict.fromkeys(targets))
        made = self.agent.filled(message.replace(target=None))
        found: dict[str, Receipt] = {}
        for name in names:
            why = _no_address(name)
            if why:
                found[name] = Receipt(Outcome.INVALID, name, why, field="to")
        sound = [name for name in names if name not in found]
        parts = [sound[at : at + _BROADCAST] for at in range(0, len(sound), _BROADCAST)]
        try:
            async with asyncio.TaskGroup() as group:
                sent = [group.create_task(self._send_part(made, part, transient=transient)) for part in parts]
        except ExceptionGroup as group_error:
            # They all fail of the same; whoever calls is told of one.
            raise group_error.exceptions[0] from None
        for one in sent:
            found.update(one.result())
        return {name: found[name] for name in names}

    async def _send_part(self, message: ACPMessage, targets: list[str], *, transient: bool) -> dict[str, Receipt]:
        found = {name: Receipt(Outcome.ACCEPTED, name) for name in targets}
        try:
            told: Iterable[object] = await self.agent.send_acp(message, to=targets, transient=transient)
        except DeliveryRefused as refused:
            told = refused.receipts
        except MessageTooLarge as error:
            return {name: Receipt(Outcome.TOO_LARGE, name, str(error)) for name in targets}
        for receipt in told:
            if isinstance(receipt, Receipt):
                # Without a receiver it is about the message as a whole.
                for name in [receipt.receiver] if receipt.receiver else targets:
                    found[name] = receipt
        return found

    # ---- tasks -----------------------------------------------------------------------------------------------------

    async def delegate_task(
        self,
        target_agent: str,
        task_description: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        task_id: str | None = None,
        callback_url: str | None = None,
        deadline: float | datetime | None = None,
    ) -> str:
        """Delegate a task, and return its id once the bus keeps it durably.

        Args:
            target_agent: `name`, `name@platform`, or `role:TYPE`.
            task_description: What is to be done, in words.
            parameters: Arguments, as JSON has them; numbers keep their types.
            task_id: Identity, unique for this agent; a new one by default.
            callback_url: Carried unchanged; nobody fetches it.
            deadline: When it expires: seconds from now, or an aware datetime; never by default.

        Raises:
            AgentNotRegistered, TaskAlreadyExists, InvalidArgument, PreconditionFailed, BusError: As `Agent.delegate`.
        """
        given: Any = parameters
        if given is not None and not isinstance(given, Mapping):
            text = f"parameters of type {type(given).__name__}; expected an object, or None"
            raise InvalidArgument(text, field="parameters")
        task = await self.agent.delegate(
            target_agent,
            task_description,
            dict(parameters or {}),
            task_id=task_id,
            callback_url=callback_url,
            deadline=deadline,
        )
        return task.task_id

    async def check_task_status(self, task_id: str) -> dict[str, Any]:
        """Return how a task stands that this agent delegated, maybe in an earlier program.

        Returns:
            ``task_id``; ``status``: pending before somebody has taken it up, then accepted, running, input-required, and
            one that stays: completed, failed, rejected, cancelled or expired; ``result``: a JSON value, None before it is
            completed; ``error``: why it ended otherwise, in words, else None; ``progress`` from 0 to 1 and ``note``, None
            where nothing is said.

        Raises:
            TaskNotFound: There is none, or it is forgotten after its retention.
            BusError: The bus was not reached.
        """
        return _status(await self.agent.task(task_id).get())

    async def wait_for_task(self, task_id: str, timeout: float | None = None) -> dict[str, Any]:
        """Wait until a task has ended, and return how, as `check_task_status`.

        Raises:
            AnswerTimeout: It has not ended within ``timeout`` seconds. It goes on.
            TaskNotFound, BusError: As `check_task_status`.
        """
        return _status(await self.agent.task(task_id).wait(timeout))

    async def cancel_task(self, task_id: str, reason: str = "") -> dict[str, Any]:
        """Ask to end a task, and return how it stands then, as `check_task_status`; see `Task.cancel`.

        Raises:
            TaskNotFound, BusError: As `check_task_status`.
        """
        return _status(await self.agent.task(task_id).cancel(reason))

    async def _work(self, context: TaskContext) -> Any:
        """Work on a task that was delegated to this agent."""
        handler = self.handlers.get(ACPMessageType.DELEGATE)
        if handler is None:
            raise TaskRefused(f"{self.agent.name} takes no tasks")
        return await self.agent._acp.work(handler, _order(context.task, self.agent.aid))

    # ---- health ----------------------------------------------------------------------------------------------------

    async def health_check(self) -> dict[str, Any]:
        """Return how the agent stands.

        Returns:
            ``agent_id``; ``connected``: whether a session is open; ``connections``: how many; ``pending_tasks``: how many
            it delegated that have not ended; ``running_tasks``: on how many it works; both None while the bus does not
            answer; ``timestamp`` in ISO 8601.
        """
        pending: int | None = None
        running: int | None = None
        with contextlib.suppress(Unavailable, PreconditionFailed):
            me = self.agent.aid
            pending = len(await self.agent.tasks(delegator=me, states=_OPEN, max_results=-1))
            running = len(await self.agent.tasks(executor=me, states=_WORKED_ON, max_results=-1))
        return {
            "agent_id": self.agent.aid,
            "connected": self.agent.connected,
            "connections": len(self.connections),
            "pending_tasks": pending,
            "running_tasks": running,
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }

    def _check_started(self) -> None:
        if self._watcher is None:
            text = "the service is not started; use it inside `async with`, or after `start`"
            raise PreconditionFailed(f"{self.agent.name}: {text}")

    def _bare(self, name: str) -> str:
        """Return a name as the bus tells it of a sender: the bare one for an agent of this platform."""
        return name.removesuffix(f"@{self.agent.aid.partition('@')[2]}")


def _no_address(name: object) -> str:
    """Return why a target cannot travel as an address; "" when it can.

    Raises:
        InvalidArgument: It is no text, so that no receipt can name it.
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"a target of type {type(name).__name__}; expected the name of an agent", field="targets")
    if not name:
        # Its receipt would be taken for one about the message as a whole.
        return "the name is empty"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "the name has a lone surrogate; expected valid Unicode"
    return ""


def _status(task: DelegatedTask) -> dict[str, Any]:
    state = task.state
    ended_otherwise = state.final and state is not TaskState.COMPLETED
    return {
        "task_id": task.task_id,
        "status": "pending" if state is TaskState.SUBMITTED else str(state),
        "result": task.result,
        "error": (task.reason or str(state)) if ended_otherwise else None,
        "progress": task.progress,
        "note": task.note or None,
    }


def _order(task: DelegatedTask, receiver: str) -> ReceivedACP:
    """Return the DELEGATE that says what a task is, for a handler of ACP messages."""
    order = DelegateMessage(
        task.task_id,
        task.description,
        callback_url=task.callback_url,
        deadline=task.deadline,
        on_executor_lost=task.on_executor_lost,
        parent=task.parent,
        attachments=task.attachments,
    )
    content: dict[str, Any] = {**order.to_content(), "parameters": task.parameters}
    return ReceivedACP(
        id=task.task_id,
        type=ACPMessageType.DELEGATE,
        source=task.delegator,
        target=receiver,
        content=content,
        metadata=ACPMetadata(str(task.priority)),
        timestamp=task.created_at,
        receiver=receiver,
        attempt=max(1, len(task.attempts)),
        redelivered=len(task.attempts) > 1,
    )
