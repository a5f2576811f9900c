"""`gagent request` and `gagent send`: one message from the command line, under a name that lasts as long as the command."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gagent_grpc.cli import options
from gagent_grpc.cli.exits import SEE_ALL
from gagent_grpc.cli.output import message_to_json, note, print_content, print_json, printable

if TYPE_CHECKING:
    from gagent_grpc.cli.settings import Settings
    from gagent_grpc.client.agent import Agent
    from gagent_grpc.client.message import Receipt

_LOOK_AGAIN_S = 0.1
"""Seconds between looks at the AMS while an agent is waited for."""
NOTE_AFTER_S = 1.0
"""Seconds of waiting after which the person at the terminal is told."""

To = Annotated[str, typer.Argument(metavar="TO", help="Whom: a name, or NAME@PLATFORM.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="Content; - reads it from stdin.")]
ConversationId = Annotated[str | None, typer.Option(metavar="ID", help="Conversation that it belongs to.")]
Ontology = Annotated[str | None, typer.Option(metavar="NAME", help="Ontology of the content.")]
Language = Annotated[str | None, typer.Option(metavar="NAME", help="Language of the content.")]
WaitFor = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.0, help="Wait until TO is active, at most so long; 0 does not wait.")
]
OnLost = Annotated[
    str | None,
    typer.Option(
        "--on-receiver-lost",
        metavar="fail|wait",
        help="When TO is lost before it answered: fail has the bus say so, wait leaves the message to its return. "
        "[default: fail]",
    ),
]
Protocol = Annotated[str | None, typer.Option(metavar="NAME", help="Interaction protocol, such as fipa-request.")]


def request(
    to: To,
    text: Text,
    performative: Annotated[
        str, typer.Option(metavar="ACT", help="Another act that expects an answer, such as query-ref.")
    ] = "request",
    conversation_id: ConversationId = None,
    ontology: Ontology = None,
    language: Language = None,
    protocol: Protocol = None,
    on_receiver_lost: OnLost = None,
    wait_for: WaitFor = 0.0,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Ask an agent and print the content of its answer."""
    import asyncio

    from gagent_grpc.cli.settings import resolve
    from gagent_grpc.errors import ConversationFailed

    settings = resolve(config, bus=bus, timeout=timeout)
    act = _asking(performative)
    content = _content(text)
    parameters = _given(conversation_id=conversation_id, ontology=ontology, language=language, protocol=protocol)
    parameters |= _given(on_receiver_lost=_on_lost(on_receiver_lost))
    _check_address(to)
    try:
        answer = asyncio.run(_request(settings, to, act, content, parameters, wait_for))
    except ConversationFailed as failed:
        # An answer too, so programs get it as one; the exit code and the line on stderr say what it is.
        if as_json:
            print_json({"performative": failed.word, "sender": failed.sender, "content": failed.text})
        raise
    if as_json:
        print_json(message_to_json(answer))
    else:
        print_content(answer.content)


def send(
    to: To,
    text: Text,
    performative: Annotated[str, typer.Option(metavar="ACT", help="One of FIPA's 22 acts.")] = "inform",
    conversation_id: ConversationId = None,
    ontology: Ontology = None,
    language: Language = None,
    protocol: Protocol = None,
    on_receiver_lost: OnLost = None,
    wait_for: WaitFor = 0.0,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Send a message and print its receipt: what became of it."""
    import asyncio

    from gagent_grpc.acl.performative import Performative
    from gagent_grpc.cli.settings import resolve
    from gagent_grpc.errors import DeliveryRefused

    settings = resolve(config, bus=bus, timeout=timeout)
    act = Performative.parse(performative)
    content = _content(text)
    parameters = _given(conversation_id=conversation_id, ontology=ontology, language=language, protocol=protocol)
    parameters |= _given(on_receiver_lost=_on_lost(on_receiver_lost))
    _check_address(to)
    try:
        receipt = asyncio.run(_send(settings, to, act, content, parameters, wait_for))
    except DeliveryRefused as refused:
        if as_json:
            print_json({"receiver": refused.receiver, "outcome": refused.outcome, "detail": refused.detail})
        raise
    counts = {"reached": receipt.reached, "missed": receipt.missed} if receipt.reached or receipt.missed else {}
    if as_json:
        print_json({"receiver": to, "outcome": receipt.outcome.name, **counts})
    else:
        told = "".join(f", {name} {count:,}" for name, count in counts.items() if count)
        typer.echo(f"{printable(to)}: {receipt.outcome.name}{told}")


async def _request(
    settings: Settings, to: str, act: Any, content: str, parameters: dict[str, Any], wait_for: float
) -> Any:
    import asyncio

    from gagent_grpc.client.ams import why_no_answer

    async with _visitor(settings) as agent:
        await until_active(agent, to, wait_for)
        asking = asyncio.ensure_future(
            agent.request(to, content, performative=act, timeout=settings.answer_timeout, **parameters)
        )
        try:
            with _sizes_told(to):
                if sys.stderr.isatty() and not (await asyncio.wait({asking}, timeout=NOTE_AFTER_S))[0]:
                    note(f"Waiting for {printable(to)}, {settings.answer_timeout:g} s at most ...")
                    if why := await why_no_answer(agent.ams, to):
                        note(f"{printable(why)}. {SEE_ALL}")
                return await asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def _send(
    settings: Settings, to: str, act: Any, content: str, parameters: dict[str, Any], wait_for: float
) -> Receipt:
    import asyncio

    from gagent_grpc.client.message import Receipt
    from gagent_grpc.envelope import Outcome
    from gagent_grpc.errors import AnswerTimeout

    async with _visitor(settings) as agent:
        await until_active(agent, to, wait_for)
        try:
            with _sizes_told(to):
                async with asyncio.timeout(settings.call_timeout):
                    receipts = await agent.send(to, act, content, **parameters)
        except TimeoutError:
            raise AnswerTimeout(f"receipt for {to}", settings.call_timeout) from None
    return receipts[0] if receipts else Receipt(Outcome.ACCEPTED, to)


@contextlib.asynccontextmanager
async def _visitor(settings: Settings) -> AsyncIterator[Agent]:
    """Be on the bus under a name of our own while the block lasts; nothing of it stays."""
    import secrets

    from gagent_grpc.cli.logs import set_up_logs
    from gagent_grpc.client.agent import Agent
    from gagent_grpc.client.operator import Operator

    set_up_logs()
    # A person should hear at once that there is no bus, where an agent would try again for a while.
    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        endpoint = operator.endpoint
    agent = Agent(f"cli-{secrets.token_hex(4)}", bus=endpoint, ephemeral=True)
    async with agent:
        try:
            yield agent
        finally:
            # Whoever still answers hears at once that nobody is there.
            await agent.aclose(deregister=True)


@contextlib.contextmanager
def _sizes_told(to: str) -> Iterator[None]:
    """Have a message that is too large refused like any other that is not delivered.

    Raises:
        DeliveryRefused: It is.
    """
    from gagent_grpc.errors import DeliveryRefused, MessageTooLarge

    try:
        yield
    except MessageTooLarge as error:
        raise DeliveryRefused("TOO_LARGE", to, f"{error}; send less, or a reference") from error


async def until_active(agent: Agent, to: str, seconds: float) -> None:
    """Wait until somebody else's agent is active, at most so long; what is not there by then, the receipt will tell."""
    import asyncio

    from gagent_grpc.acl.descriptions import (
        AMSAgentDescription,
        DFAgentDescription,
        LifeCycleState,
        ServiceDescription,
    )

    if to == "*" or to.startswith("topic:"):
        return
    active = AMSAgentDescription(name=to, state=LifeCycleState.ACTIVE)
    offered = DFAgentDescription(services=(ServiceDescription(type=to.removeprefix("role:")),))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds or None):
            while seconds:
                if to.startswith("role:") and await agent.df.search(offered):
                    return
                if not to.startswith("role:") and await agent.ams.search(active):
                    return
                await asyncio.sleep(_LOOK_AGAIN_S)


def _content(text: str) -> str:
    """Return the content that TEXT stands for; of stdin without its last line end, as shells do."""
    if text == "-":
        try:
            return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError:
            raise typer.BadParameter("stdin is not UTF-8 text; expected UTF-8", param_hint="TEXT") from None
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(
            "not valid text in the encoding of this terminal; expected UTF-8", param_hint="TEXT"
        ) from None
    return text


def _asking(performative: str) -> Any:
    """Return the act that PERFORMATIVE names.

    Raises:
        UnknownPerformative: It is none of the 22 acts.
    """
    from gagent_grpc.acl.performative import EXPECTS_ANSWER, Performative

    act = Performative.parse(performative)
    if act not in EXPECTS_ANSWER:
        expected = ", ".join(str(one) for one in Performative if one in EXPECTS_ANSWER)
        raise typer.BadParameter(
            f"{act} expects no answer; expected one of: {expected}. Use gagent send for it", param_hint="--performative"
        )
    return act


def _check_address(to: str) -> None:
    """Make sure that TO is a name; other kinds of addresses are for the bus to judge.

    Raises:
        InvalidName: It is none.
    """
    from gagent_grpc.acl.aid import split_aid

    if to != "*" and not to.startswith(("role:", "topic:")):
        split_aid(to)


def _on_lost(text: str | None) -> Any:
    """Return what `--on-receiver-lost` names; None when it is not given."""
    from gagent_grpc.envelope import OnReceiverLost

    found = {one.name.lower(): one for one in OnReceiverLost}
    if text is not None and text.lower() not in found:
        raise typer.BadParameter(f"{text!r}; expected {' or '.join(found)}", param_hint="--on-receiver-lost")
    return None if text is None else found[text.lower()]


def _given(**parameters: Any) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}
