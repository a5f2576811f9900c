"""The exit codes that programs rely on, and the one line that a person reads."""

import pytest

from gagent_grpc import errors
from gagent_grpc.cli.exits import EXIT_CODES, ExitCode, describe, exit_code
from gagent_grpc.errors import BusError

MADE = {
    errors.AgentNotRegistered: (("bob",), 1),
    errors.AgentAlreadyRegistered: (("bob",), 1),
    errors.Unauthenticated: (("no token",), 6),
    errors.Unauthorised: (("not yours",), 6),
    errors.InvalidArgument: (("bad",), 2),
    errors.InvalidName: (("bad",), 2),
    errors.MissingParameter: (("search", "name"), 2),
    errors.UnrecognisedParameterValue: (("search", "max-results", "is 0"), 2),
    errors.UnknownPerformative: (("shout", "inform, request"), 2),
    errors.ProtocolViolation: (("second hello",), 1),
    errors.UnsupportedFunction: (("no such function",), 1),
    errors.PreconditionFailed: (("bob is initiated",), 1),
    errors.SessionSuperseded: (("bob",), 1),
    errors.SearchRepeated: (("s1",), 1),
    errors.ResourceExhausted: (("full",), 3),
    errors.MailboxFull: (("bob", "10 messages"), 3),
    errors.MessageTooLarge: ((2, 1), 3),
    errors.TooManySessions: (("full",), 3),
    errors.Unavailable: (("away",), 5),
    errors.BusDraining: (("stopping",), 5),
    errors.BusUnreachable: (("127.0.0.1:1",), 5),
    errors.StoreUnavailable: (("disk",), 5),
    errors.DeliveryRefused: (("NO_SUCH_AGENT", "bob"), 3),
    errors.AnswerTimeout: (("bob", 1.0), 4),
    errors.ConversationFailed: (("bob", "no"), 1),
    errors.RefusedByAgent: (("bob", "no"), 1),
    errors.FailureFromAgent: (("bob", "no"), 1),
    errors.NotUnderstoodByAgent: (("bob", "no"), 1),
    errors.TaskEnded: (("t1", "cancelled"), 1),
    errors.AttemptSuperseded: (("t1", 1, 2, "attempt 2 is"), 1),
    errors.TaskNotFound: (("bob", "t1"), 1),
    errors.TaskAlreadyExists: (("t1", "target"), 1),
    errors.EventsGone: (("t1", 3, 9), 1),
    errors.EntryNotFound: (("plan",), 1),
    errors.ContextEnded: (("over",), 1),
    errors.RevisionConflict: (("plan", 3, 5), 1),
    errors.NoProvider: (("summarise",), 3),
    errors.TaskNotCompleted: (("t1", "bob", "no"), 1),
    errors.TaskFailed: (("t1", "bob", "no"), 1),
    errors.TaskRejected: (("t1", "bob", "no"), 1),
    errors.TaskCancelled: (("t1", "bob", "no"), 1),
    errors.TaskExpired: (("t1", "bob", "no"), 4),
    errors.TaskRefused: (("not mine",), 1),
    errors.ScriptError: (("died",), 1),
    errors.ConfigurationError: (("port taken",), 2),
    BusError: (("internal error",), 1),
}


def every_class(root: type[BusError] = BusError) -> set[type[BusError]]:
    return {root}.union(*(every_class(cls) for cls in root.__subclasses__()))


def test_every_error_of_the_tree_is_judged_here() -> None:
    assert {cls for cls in every_class() if cls.__module__ == errors.__name__} == set(MADE)


@pytest.mark.parametrize("cls", MADE, ids=lambda cls: cls.__name__)
def test_each_error_has_its_exit_code(cls: type[BusError]) -> None:
    arguments, expected = MADE[cls]
    assert exit_code(cls(*arguments)) == expected


def test_the_table_has_no_two_answers_for_an_error_of_two_kinds() -> None:
    for cls in every_class():
        codes = [EXIT_CODES[base] for base in cls.__mro__ if base in EXIT_CODES]
        assert codes, cls


def test_a_denied_message_is_denied_and_not_undelivered() -> None:
    assert exit_code(errors.DeliveryRefused("DENIED", "bob")) is ExitCode.DENIED


@pytest.mark.parametrize(
    ("detail", "line"),
    [
        ("registered: helper, planner", "nobody: NO_SUCH_AGENT. Registered: helper, planner"),
        ("nobody is registered", "nobody: NO_SUCH_AGENT. Nobody is registered"),
        ("bob@local is gone", "nobody: NO_SUCH_AGENT. bob@local is gone"),
        ("", "nobody: NO_SUCH_AGENT"),
    ],
)
def test_a_refused_delivery_reads_as_a_sentence(detail: str, line: str) -> None:
    assert describe(errors.DeliveryRefused("NO_SUCH_AGENT", "nobody", detail)) == line


def test_an_absent_bus_comes_with_the_way_out() -> None:
    assert describe(errors.BusUnreachable("127.0.0.1:50051")) == "No bus at 127.0.0.1:50051. Start one: gagent serve"


def test_a_name_that_is_taken_comes_with_the_way_out() -> None:
    error = errors.AgentAlreadyRegistered("bob@local", "AMS", "a live session holds the name")
    said = "bob@local: already registered with the AMS (a live session holds the name). Stop it (gagent kill bob) or"
    assert describe(error) == f"{said} choose another name with --name"
    assert describe(error, name_setting="GAGENT_NAME") == f"{said} choose another name with GAGENT_NAME"


def test_a_silent_agent_that_is_away_comes_with_the_way_to_see_it() -> None:
    assert describe(errors.AnswerTimeout("bob", 2.0)) == "bob: no answer within 2 s"
    assert (
        describe(errors.AnswerTimeout("bob", 2.0, "bob is suspended"))
        == "bob: no answer within 2 s; bob is suspended. See gagent ps --all"
    )


def test_an_error_without_a_text_has_its_name() -> None:
    assert describe(errors.Unauthorised()) == "Unauthorised"
