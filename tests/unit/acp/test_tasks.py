"""Delegated tasks as values: which states stay, how they are written, and attachments that are what they say."""

from __future__ import annotations

import dataclasses

import pytest

from gagent_grpc import Attachment, OnExecutorLost, TaskEventKind, TaskState


def test_the_last_five_states_are_final() -> None:
    assert [state for state in TaskState if state.final] == [
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.REJECTED,
        TaskState.CANCELLED,
        TaskState.EXPIRED,
    ]


def test_words_are_written_as_people_read_them() -> None:
    assert str(TaskState.INPUT_REQUIRED) == "input-required"
    assert str(TaskEventKind.CANCEL_REQUESTED) == "cancel-requested"
    assert str(OnExecutorLost.REDELIVER) == "redeliver"


def test_attachment_knows_its_content_again() -> None:
    content = b"a,b\n1,2\n"
    made = Attachment.of(content, "file:///tmp/a.csv", "text/csv", name="a.csv")
    assert made.size_bytes == len(content)
    assert made.digest == "sha256:492d5ea496056f1a6a6592241032fab764c321596317930b4fa0e1e8bc3b7470"
    assert made.matches(content)
    assert not made.matches(content + b"3,4\n")
    assert not made.matches(b"b,a\n1,2\n")
    # What is not said is not judged.
    assert Attachment("file:///tmp/a.csv", "text/csv").matches(b"anything")
    assert dataclasses.replace(made, digest=made.digest.upper().replace("SHA256", "sha256")).matches(content)


@pytest.mark.parametrize("name", ["digest", "uri", "media_type"])
def test_values_do_not_change(name: str) -> None:
    made = Attachment.of(b"", "file:///x", "text/plain")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, name, "other")
