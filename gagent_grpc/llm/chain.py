"""Who asked whom: the agents that lead to a question, carried with it so that nobody asks in a circle.

Owns: the chain and how it travels, in a user parameter of ACL messages and in an attachment of tasks. Pure. Leaves to
others: what is asked (`llm.tools`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

from gagent_grpc.acp.tasks import Attachment, DelegatedTask

PARAMETER = "X-asked-by"
"""User parameter of a question: the agents that led to it, first one first, with blanks between them."""
_SCHEME = "gagent-chain:"
_MOST = 64


def chain_of(sender: str, user_parameters: Mapping[str, str]) -> tuple[str, ...]:
    """Return the agents that led to a message, the one who sent it last.

    Args:
        sender: `name@platform`, as the bus vouches for it.
        user_parameters: Of the message. What they say is the senders' word; it can make this agent ask less, never more.
    """
    return _ending_in(sender, _names(user_parameters.get(PARAMETER, "")))


def chain_of_task(task: DelegatedTask) -> tuple[str, ...]:
    """Return the agents that led to a task, the one who delegated it last."""
    said: list[str] = []
    for attachment in task.attachments:
        if attachment.uri.startswith(_SCHEME):
            said += _names(unquote(attachment.uri.removeprefix(_SCHEME)))
    # The bus itself knows the beginning and the end of a chain of tasks.
    known = [key.delegator for key in (task.root, task.parent) if key is not None]
    return _ending_in(task.delegator, [*(name for name in known if name not in said), *said])


def parameters_with(chain: Iterable[str]) -> dict[str, str]:
    """Return the user parameters of a question that ``chain`` leads to."""
    return {PARAMETER: " ".join(chain)}


def attachment_with(chain: Iterable[str]) -> Attachment:
    """Return the attachment of a task that ``chain`` leads to. A task's parameters are the executor's: they stay free."""
    return Attachment(_SCHEME + quote(" ".join(chain)), "text/plain", name="asked-by")


def _names(text: str) -> list[str]:
    return text.split()[:_MOST]


def _ending_in(last: str, names: Iterable[str]) -> tuple[str, ...]:
    found = dict.fromkeys(name for name in names if name != last)
    return (*found, last)
