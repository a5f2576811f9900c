"""The protos as other languages will meet them: names that nobody's keywords are, and enums that follow the rules."""

from __future__ import annotations

import keyword
from collections.abc import Iterator

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor

from gagent_grpc.pb.gagent.v1 import (
    acl_pb2,
    acp_pb2,
    admin_service_pb2,
    agent_pb2,
    ams_service_pb2,
    bus_service_pb2,
    context_service_pb2,
    df_service_pb2,
    task_service_pb2,
)

FILES: list[FileDescriptor] = [
    module.DESCRIPTOR
    for module in (
        acl_pb2,
        acp_pb2,
        admin_service_pb2,
        agent_pb2,
        ams_service_pb2,
        bus_service_pb2,
        context_service_pb2,
        df_service_pb2,
        task_service_pb2,
    )
]
# Words that a field, an RPC or a message cannot bear without being changed in some language's generated code: those of
# C++, Java, C#, Go, Rust and JavaScript.
_WORDS = """
alignas alignof and asm auto bitand bitor bool break case catch char class compl concept const constexpr continue
decltype default delete do double else enum explicit export extern false float for friend goto if inline int long mutable
namespace new noexcept not nullptr operator or private protected public register requires return short signed sizeof
static struct switch template this throw true try typedef typeid typename union unsigned using virtual void volatile
while xor
abstract assert boolean byte extends final finally implements import instanceof interface native package strictfp super
synchronized throws transient as base checked decimal delegate event fixed foreach implicit in internal is lock object
out override params readonly ref sbyte sealed stackalloc string uint ulong unchecked unsafe ushort
chan defer fallthrough func go map range select type var
async await become box crate dyn fn impl let loop macro match mod move mut priv pub self trait typeof unsized use where
yield
arguments debugger eval function null with constructor prototype from
"""
KEYWORDS = {word.lower() for word in [*_WORDS.split(), *keyword.kwlist, *keyword.softkwlist]}
# `template` and `transient` are proto field names that protoc's own generators escape or that differ by case only;
# each one is accepted with its reason.
ACCEPTED = {
    # C++ names it `template_`, everybody else leaves it; FIPA has no other word for what a search is made by.
    "SearchAgentsRequest.template",
    "SearchDescriptionsRequest.template",
    "WatchAgentsRequest.template",
    "WatchDescriptionsRequest.template",
    # Java writes getTransient(), which is no keyword; the generated field is private and named transient_.
    "BusMessage.transient",
    # Of C# alone, which writes Event; the generated field is private and named event_.
    "WatchTaskResponse.event",
}


def messages() -> Iterator[Descriptor]:
    def below(message: Descriptor) -> Iterator[Descriptor]:
        if not message.GetOptions().map_entry:
            yield message
        for inner in message.nested_types:
            yield from below(inner)

    for file in FILES:
        for message in file.message_types_by_name.values():
            yield from below(message)


def enums() -> Iterator[EnumDescriptor]:
    for file in FILES:
        yield from file.enum_types_by_name.values()
    for message in messages():
        yield from message.enum_types


def upper_snake(name: str) -> str:
    return "".join(f"_{char}" if char.isupper() and index else char for index, char in enumerate(name)).upper()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_file_says_what_generated_code_is_called(file: FileDescriptor) -> None:
    assert file.package == "gagent.v1"
    options = file.GetOptions()
    assert options.csharp_namespace == "Gagent.V1"
    assert options.go_package == "gagent.dev/gen/gagent/v1;gagentv1"
    assert options.java_package == "dev.gagent.v1"
    assert options.java_multiple_files
    base = file.name.rpartition("/")[2].removesuffix(".proto")
    assert options.java_outer_classname == "".join(part.capitalize() for part in base.split("_")) + "Proto"


@pytest.mark.parametrize("enum", list(enums()), ids=lambda enum: enum.name)
def test_enum_values_bear_its_name_and_begin_with_unspecified(enum: EnumDescriptor) -> None:
    prefix = upper_snake(enum.name) + "_"
    assert all(value.name.startswith(prefix) for value in enum.values)
    assert (enum.values[0].name, enum.values[0].number) == (f"{prefix}UNSPECIFIED", 0)
    assert all(value.number >= 0 for value in enum.values)


@pytest.mark.parametrize("message", list(messages()), ids=lambda message: message.name)
def test_names_are_nobodys_keywords(message: Descriptor) -> None:
    names = [field.name for field in message.fields] + [oneof.name for oneof in message.oneofs]
    taken = [name for name in names if name.lower() in KEYWORDS and f"{message.name}.{name}" not in ACCEPTED]
    assert taken == []
    assert message.name.lower() not in KEYWORDS


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_services_and_rpcs_have_names_of_their_own(file: FileDescriptor) -> None:
    used: list[str] = []
    for service in file.services_by_name.values():
        assert service.name.endswith("Service")
        for method in service.methods:
            assert method.name.lower() not in KEYWORDS
            assert method.input_type.name == f"{method.name}Request"
            assert method.output_type.name == f"{method.name}Response"
            used += [method.input_type.full_name, method.output_type.full_name]
    assert len(used) == len(set(used))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_message_is_called_like_its_file_or_package_or_a_common_class(file: FileDescriptor) -> None:
    base = file.name.rpartition("/")[2].removesuffix(".proto").replace("_", "")
    reserved = {
        "v1",
        "gagent",
        "gagentv1",
        base,
        "task",
        "send",
        "context",
        "message",
        "object",
        "string",
        "error",
        "type",
    }
    for name in [*file.message_types_by_name, *file.enum_types_by_name]:
        assert name.lower() not in reserved


def test_counters_are_unsigned_and_nothing_is_fixed_or_a_group() -> None:
    plain = {
        descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
        descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
        descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
        descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
        descriptor_pb2.FieldDescriptorProto.TYPE_ENUM,
        descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
        descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    }
    # A limit that may be negative, which means "all".
    signed = {
        "SearchAgentsRequest.max_results",
        "SearchDescriptionsRequest.max_results",
        "SearchDescriptionsRequest.max_depth",
    }
    for message in messages():
        for field in message.fields:
            assert field.type in plain or f"{message.name}.{field.name}" in signed


@pytest.mark.parametrize("message", list(messages()), ids=lambda message: message.name)
def test_field_numbers_are_small_and_not_reserved(message: Descriptor) -> None:
    proto = descriptor_pb2.DescriptorProto()
    message.CopyToProto(proto)
    reserved = {number for span in proto.reserved_range for number in range(span.start, span.end)}
    numbers = [field.number for field in message.fields]
    assert not reserved & set(numbers)
    assert max(numbers, default=0) < 100
