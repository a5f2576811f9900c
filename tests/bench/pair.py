"""One sender to one receiver through the bus, beside a relay that moves one message per frame, in one run.

Both sides build and read whole ACL messages, about 180 bytes encoded with 100 bytes of content; server and clients are
processes of their own. Prints messages per second for each, and the ratio.

    python tests/bench/pair.py [--messages 60000] [--runs 5] [--at-least 8]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

CONTENT = "x" * 100
CREDIT = 1000
"""Messages after which the receiver lets the sender go on."""
AHEAD = 8
"""Credits at the start: 8,000 messages may be on their way, where a mailbox holds 10,000."""


def _loop_runner() -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


# ---- the bus ----------------------------------------------------------------------------------------------------------


def bus_process(pipe: Connection) -> None:
    async def main() -> None:
        from gagent_grpc import MemoryStore, open_bus
        from gagent_grpc.server.process import tune_collector

        # As `gagent serve` does.
        tune_collector()
        async with open_bus(MemoryStore()) as bus:
            pipe.send(bus.address)
            await asyncio.to_thread(pipe.recv)

    _loop_runner()(main())


def bus_receiver(address: str, pipe: Connection) -> None:
    async def main() -> None:
        from gagent_grpc import ACLMessage, Agent, AgentIdentifier, Performative

        agent = Agent("receiver", bus=address)
        done = asyncio.Event()
        credit = ACLMessage(Performative.CONFIRM, receivers=(AgentIdentifier("sender"),))
        granted: list[asyncio.Task[Any]] = []
        left = 0

        @agent.on("inform")
        async def take(message: Any) -> None:
            nonlocal left
            _read(message.sender.name, message.performative, message.content, message.conversation_id)
            left -= 1
            if left % CREDIT == 0:
                # In a task of its own: the next messages need not wait for the receipt of this one.
                granted.append(asyncio.create_task(agent.send_message(credit)))
            if left == 0:
                done.set()

        async with agent:
            pipe.send("ready")
            while (left := await asyncio.to_thread(pipe.recv)) > 0:
                done.clear()
                pipe.send("go")
                await done.wait()
                pipe.send(time.perf_counter())
                await asyncio.gather(*granted)
                granted.clear()

    _loop_runner()(main())


async def send(agent: Any, to: Any) -> None:
    from gagent_grpc import ACLMessage, Performative

    refused = await agent.send_all(
        ACLMessage(Performative.INFORM, receivers=to, content=CONTENT, conversation_id="bench") for _ in range(CREDIT)
    )
    if refused:
        raise SystemExit(f"refused: {refused[0]}")


def bus_sender(address: str, pipe: Connection) -> None:
    async def main() -> None:
        from gagent_grpc import Agent, AgentIdentifier

        to = (AgentIdentifier("receiver"),)
        agent = Agent("sender", bus=address)
        credits_left = asyncio.Semaphore(AHEAD)

        @agent.on("confirm")
        async def more(message: Any) -> None:
            credits_left.release()

        async with agent:
            pipe.send("ready")
            while (count := await asyncio.to_thread(pipe.recv)) > 0:
                started = time.perf_counter()
                async with asyncio.TaskGroup() as group:
                    for _ in range(count // CREDIT):
                        # No further ahead than the mailbox is deep: the receiver says when it has room.
                        await credits_left.acquire()
                        group.create_task(send(agent, to))
                pipe.send(started)

    _loop_runner()(main())


# ---- the relay --------------------------------------------------------------------------------------------------------


def relay_process(pipe: Connection) -> None:
    """Serve streams that hand each message to the receiver that it names, one message in a frame: the plain design.

    Messages are typed, as generated servicers have them. It gives no receipts, keeps nothing and is told of no
    acknowledgement, so it does less than a bus.
    """

    async def main() -> None:
        import grpc

        from gagent_grpc.pb.gagent.v1.bus_service_pb2 import BusMessage

        queues: dict[str, asyncio.Queue[BusMessage]] = {"receiver": asyncio.Queue(maxsize=1000)}

        async def take(requests: Any, context: Any) -> None:
            async for message in requests:
                await queues[message.acl.receivers[0].name].put(message)

        async def give(requests: Any, context: Any) -> None:
            name = (await context.read()).acl.sender.name
            while True:
                await context.write(await queues[name].get())

        def typed(handler: Any) -> grpc.RpcMethodHandler:
            return grpc.stream_stream_rpc_method_handler(handler, BusMessage.FromString, BusMessage.SerializeToString)

        server = grpc.aio.server()
        methods = {"take": typed(take), "give": typed(give)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("relay", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        pipe.send(f"127.0.0.1:{port}")
        await asyncio.to_thread(pipe.recv)
        await server.stop(0)

    _loop_runner()(main())


def relay_receiver(address: str, pipe: Connection) -> None:
    async def main() -> None:
        import grpc

        from gagent_grpc.codec.acl import acl_from_proto
        from gagent_grpc.pb.gagent.v1 import bus_service_pb2

        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream("/relay/give")()
            hello = bus_service_pb2.BusMessage()
            hello.acl.sender.name = "receiver"
            await call.write(hello.SerializeToString())
            pipe.send("ready")
            while (left := await asyncio.to_thread(pipe.recv)) > 0:
                pipe.send("go")
                while left:
                    message = acl_from_proto(bus_service_pb2.BusMessage.FromString(await call.read()).acl)
                    _read("sender", message.performative, message.content, message.conversation_id)
                    left -= 1
                pipe.send(time.perf_counter())
            call.cancel()

    _loop_runner()(main())


def relay_sender(address: str, pipe: Connection) -> None:
    async def main() -> None:
        import grpc

        from gagent_grpc import ACLMessage, AgentIdentifier, Performative
        from gagent_grpc.client.ids import new_id
        from gagent_grpc.codec.acl import acl_to_proto
        from gagent_grpc.pb.gagent.v1 import bus_service_pb2

        to = (AgentIdentifier("receiver"),)
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream("/relay/take")()
            pipe.send("ready")
            while (count := await asyncio.to_thread(pipe.recv)) > 0:
                started = time.perf_counter()
                for _ in range(count):
                    made = bus_service_pb2.BusMessage(id=new_id())
                    acl_to_proto(
                        ACLMessage(Performative.INFORM, receivers=to, content=CONTENT, conversation_id="bench"),
                        made.acl,
                    )
                    await call.write(made.SerializeToString())
                pipe.send(started)
            call.cancel()

    _loop_runner()(main())


# ---- running ----------------------------------------------------------------------------------------------------------


def _read(sender: str, performative: int, content: Any, conversation_id: Any) -> None:
    if len(content) != len(CONTENT) or conversation_id != "bench" or not sender or not performative:
        raise SystemExit("a message came out wrong")


class Trio:
    """A server, a receiver and a sender in processes of their own."""

    def __init__(self, context: SpawnContext, server: Any, receiver: Any, sender: Any) -> None:
        self._processes: list[SpawnProcess] = []
        self._server = self._start(context, server)
        address = self._server.recv()
        self._receiver = self._start(context, receiver, address)
        self._receiver.recv()
        self._sender = self._start(context, sender, address)
        self._sender.recv()

    def _start(self, context: SpawnContext, target: Any, *args: Any) -> Connection:
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(*args, theirs), daemon=True)
        process.start()
        self._processes.append(process)
        return ours

    def measure(self, messages: int) -> float:
        """Return messages per second from the first one sent to the last one read."""
        self._receiver.send(messages)
        self._receiver.recv()
        self._sender.send(messages)
        ended = self._receiver.recv()
        started = self._sender.recv()
        return messages / float(ended - started)

    def close(self) -> None:
        for pipe in (self._sender, self._receiver, self._server):
            pipe.send(0)
        for process in self._processes:
            process.join(timeout=20)
            if process.is_alive():
                process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=60_000, help="messages of one run over the bus")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--at-least", type=float, default=8.0, help="exit 1 when the median ratio is below")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ratios = []
    for run in range(options.runs):
        speeds = []
        # The relay gets fewer messages, since it needs as long for a tenth of them.
        for parts, count in (
            ((bus_process, bus_receiver, bus_sender), options.messages),
            ((relay_process, relay_receiver, relay_sender), max(CREDIT, options.messages // 10)),
        ):
            trio = Trio(context, *parts)
            trio.measure(max(CREDIT, count // 5 // CREDIT * CREDIT))
            speeds.append(trio.measure(count // CREDIT * CREDIT))
            trio.close()
        ratios.append(speeds[0] / speeds[1])
        print(
            f"run {run + 1}: bus {speeds[0]:8,.0f}/s   relay {speeds[1]:7,.0f}/s   ratio {ratios[-1]:.1f}", flush=True
        )
    median = statistics.median(ratios)
    print(f"ratio of {options.runs} runs: median {median:.1f}, from {min(ratios):.1f} to {max(ratios):.1f}")
    return 0 if median >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
