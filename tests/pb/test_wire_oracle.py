"""Our trimmed ext_proc declaration agrees with envoy-data-plane, generated from Envoy's own files.

Two independent checks: the declarations are compared (numbers, names, types, oneofs, enum values),
and random messages of one library are read by the other. Both walk the descriptors of our file, so
a message added there is checked as soon as it stands in MESSAGES. envoy-data-plane is built on
betterproto2, which shares no code with protobuf.
"""

import datetime
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import betterproto2
import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2

with warnings.catch_warnings():
    # envoy-data-plane 2.2 declares its validators in a form that pydantic 2.12 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as filter_config
    from envoy_data_plane.envoy.service.ext_proc import v3 as service
    from envoy_data_plane.envoy.type import v3 as envoy_type
    from envoy_data_plane.google import protobuf as google

pytestmark = [
    pytest.mark.filterwarnings("ignore:HttpHeaders.attributes is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:HeaderValueOption.append is deprecated:DeprecationWarning"),
]

FILE = external_processor_pb2.DESCRIPTOR
PACKAGE = FILE.package

MESSAGES: dict[str, type[betterproto2.Message]] = {
    f"{PACKAGE}.BodyMutation": service.BodyMutation,
    f"{PACKAGE}.BodyResponse": service.BodyResponse,
    f"{PACKAGE}.CommonResponse": service.CommonResponse,
    f"{PACKAGE}.GrpcStatus": service.GrpcStatus,
    f"{PACKAGE}.HeaderMap": core.HeaderMap,
    f"{PACKAGE}.HeaderMutation": service.HeaderMutation,
    f"{PACKAGE}.HeaderValue": core.HeaderValue,
    f"{PACKAGE}.HeaderValueOption": core.HeaderValueOption,
    f"{PACKAGE}.HeadersResponse": service.HeadersResponse,
    f"{PACKAGE}.HttpBody": service.HttpBody,
    f"{PACKAGE}.HttpHeaders": service.HttpHeaders,
    f"{PACKAGE}.HttpStatus": envoy_type.HttpStatus,
    f"{PACKAGE}.HttpTrailers": service.HttpTrailers,
    f"{PACKAGE}.ImmediateResponse": service.ImmediateResponse,
    f"{PACKAGE}.Metadata": core.Metadata,
    f"{PACKAGE}.ProcessingMode": filter_config.ProcessingMode,
    f"{PACKAGE}.ProcessingRequest": service.ProcessingRequest,
    f"{PACKAGE}.ProcessingResponse": service.ProcessingResponse,
    f"{PACKAGE}.ProtocolConfiguration": service.ProtocolConfiguration,
    f"{PACKAGE}.StreamedBodyResponse": service.StreamedBodyResponse,
    f"{PACKAGE}.StreamedImmediateResponse": service.StreamedImmediateResponse,
    f"{PACKAGE}.TrailersResponse": service.TrailersResponse,
    "google.protobuf.BoolValue": google.BoolValue,
    "google.protobuf.Duration": google.Duration,
    "google.protobuf.ListValue": google.ListValue,
    "google.protobuf.Struct": google.Struct,
    "google.protobuf.Value": google.Value,
}
"""The class of envoy-data-plane for each message that our file declares or uses."""

ENUMS: dict[str, type[betterproto2.Enum]] = {
    f"{PACKAGE}.CommonResponse.ResponseStatus": service.CommonResponseResponseStatus,
    f"{PACKAGE}.HeaderValueOption.HeaderAppendAction": core.HeaderValueOptionHeaderAppendAction,
    f"{PACKAGE}.ProcessingMode.BodySendMode": filter_config.ProcessingModeBodySendMode,
    f"{PACKAGE}.ProcessingMode.HeaderSendMode": filter_config.ProcessingModeHeaderSendMode,
    f"{PACKAGE}.StatusCode": envoy_type.StatusCode,
    "google.protobuf.NullValue": google.NullValue,
}

LEFT_OUT: dict[str, set[str]] = {f"{PACKAGE}.Metadata": {"typed_filter_metadata"}}
"""The fields of Envoy's messages that our file leaves out on purpose."""

PROTO_TYPES = {
    FieldDescriptor.TYPE_BOOL: betterproto2.TYPE_BOOL,
    FieldDescriptor.TYPE_BYTES: betterproto2.TYPE_BYTES,
    FieldDescriptor.TYPE_DOUBLE: betterproto2.TYPE_DOUBLE,
    FieldDescriptor.TYPE_ENUM: betterproto2.TYPE_ENUM,
    FieldDescriptor.TYPE_INT32: betterproto2.TYPE_INT32,
    FieldDescriptor.TYPE_INT64: betterproto2.TYPE_INT64,
    FieldDescriptor.TYPE_MESSAGE: betterproto2.TYPE_MESSAGE,
    FieldDescriptor.TYPE_STRING: betterproto2.TYPE_STRING,
    FieldDescriptor.TYPE_UINT32: betterproto2.TYPE_UINT32,
}

# betterproto2 shows these two as Python values instead of messages.
WRAPPED: dict[str, Callable[[Any], Any]] = {
    "google.protobuf.BoolValue": lambda message: message.value,
    "google.protobuf.Duration": lambda message: message.ToTimedelta(),
}


def map_entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor] | None:
    """The key and the value of a map field; None for any other field."""
    if field.message_type is None or not field.message_type.GetOptions().map_entry:
        return None
    key, value = field.message_type.fields
    return key, value


def metadata(cls: Any) -> betterproto2.ProtoClassMetadata:
    """What betterproto2 knows of a message class; its own annotation does not pass mypy."""
    found: betterproto2.ProtoClassMetadata = cls._betterproto
    return found


def all_messages(roots: Sequence[Descriptor]) -> dict[str, Descriptor]:
    """The messages in `roots` and all that their fields use, without map entries, by full name."""
    found: dict[str, Descriptor] = {}
    pending = list(roots)
    while pending:
        message = pending.pop()
        if message.full_name not in found:
            found[message.full_name] = message
            pending += [f.message_type for f in message.fields if f.message_type is not None]
    return {n: m for n, m in found.items() if not m.GetOptions().map_entry}


def all_enums(messages: Mapping[str, Descriptor]) -> dict[str, EnumDescriptor]:
    """The enums that the fields of the messages use, by full name."""
    fields = [field for message in messages.values() for field in message.fields]
    return {f.enum_type.full_name: f.enum_type for f in fields if f.enum_type is not None}


OURS = all_messages(list(FILE.message_types_by_name.values()))
MESSAGE_NAMES = sorted(OURS)
STREAM_MESSAGES = {f"{PACKAGE}.ProcessingRequest", f"{PACKAGE}.ProcessingResponse"}


# Declarations


def expected_class(field: FieldDescriptor) -> type | None:
    """The class of envoy-data-plane for a message or enum field; None for a scalar."""
    if field.message_type is not None:
        return MESSAGES.get(field.message_type.full_name, type(None))
    if field.enum_type is not None:
        return ENUMS.get(field.enum_type.full_name, type(None))
    return None


def actual_class(cls: type[betterproto2.Message], key: str, meta: Any) -> type | None:
    """The message or enum class behind a betterproto2 field; None for a scalar."""
    if meta.proto_type not in {betterproto2.TYPE_MESSAGE, betterproto2.TYPE_ENUM}:
        return None
    found: type = meta.unwrap() if meta.unwrap else metadata(cls).cls_by_field[key]
    return found


def field_shape(field: FieldDescriptor) -> dict[str, Any]:
    """What the wire and the generated code make of one of our fields."""
    entry = map_entry(field)
    shape: dict[str, Any] = {
        "number": field.number,
        "oneof": field.containing_oneof.name if field.containing_oneof else None,
        "repeated": field.is_repeated and entry is None,
        "presence": field.has_presence,
    }
    if entry:
        key, value = entry
        shape["type"] = ("map", PROTO_TYPES[key.type], PROTO_TYPES[value.type])
        shape["class"] = expected_class(value)
    else:
        shape["type"] = PROTO_TYPES[field.type]
        shape["class"] = expected_class(field)
    return shape


def oracle_shape(cls: type[betterproto2.Message], name: str) -> dict[str, Any]:
    """The same of the field of that name in envoy-data-plane."""
    meta = metadata(cls).meta_by_field_name[name]
    shape: dict[str, Any] = {
        "number": meta.number,
        "oneof": meta.group,
        "repeated": meta.repeated,
        "presence": meta.optional,
    }
    if meta.map_meta:
        key, value = meta.map_meta
        shape["type"] = ("map", key.proto_type, value.proto_type)
        shape["class"] = actual_class(cls, f"{name}.value", value)
    else:
        shape["type"] = meta.proto_type
        shape["class"] = actual_class(cls, name, meta)
    return shape


def message_mismatches(message: Descriptor) -> Iterator[str]:
    """Say how a message declaration departs from envoy-data-plane."""
    cls = MESSAGES[message.full_name]
    theirs = set(metadata(cls).meta_by_field_name)
    ours = set(message.fields_by_name)
    for name in sorted(ours - theirs):
        yield f"{message.full_name}.{name}: not in Envoy's API"
    for name in sorted(theirs - ours - LEFT_OUT.get(message.full_name, set())):
        yield f"{message.full_name}.{name}: missing"
    for name in sorted(ours & theirs):
        expected, actual = oracle_shape(cls, name), field_shape(message.fields_by_name[name])
        for aspect, value in expected.items():
            if actual[aspect] != value:
                yield f"{message.full_name}.{name}: {aspect} {actual[aspect]!r}, not {value!r}"


def enum_mismatches(enum: EnumDescriptor) -> Iterator[str]:
    """Say how an enum declaration departs from envoy-data-plane."""
    ours = {value.name: value.number for value in enum.values}
    theirs = {member.proto_name or member.name: int(member) for member in ENUMS[enum.full_name]}
    for name in sorted(ours | theirs):
        if ours.get(name) != theirs.get(name):
            yield f"{enum.full_name}.{name}: {ours.get(name)}, not {theirs.get(name)}"


def mismatches(messages: Mapping[str, Descriptor]) -> list[str]:
    """Every departure of the given declarations."""
    found = [line for message in messages.values() for line in message_mismatches(message)]
    enums = all_enums(messages).values()
    return found + [line for enum in enums for line in enum_mismatches(enum)]


def test_tables_cover_every_message_and_enum() -> None:
    assert set(MESSAGES) == set(OURS)
    assert set(ENUMS) == set(all_enums(OURS))


def test_no_enum_is_declared_without_being_used() -> None:
    nested = [e for m in FILE.message_types_by_name.values() for e in m.enum_types]
    declared = {e.full_name for e in [*FILE.enum_types_by_name.values(), *nested]}
    assert declared <= set(ENUMS)


@pytest.mark.parametrize("name", MESSAGE_NAMES)
def test_declared_fields_agree(name: str) -> None:
    assert list(message_mismatches(OURS[name])) == []


@pytest.mark.parametrize("name", sorted(ENUMS))
def test_declared_enum_values_agree(name: str) -> None:
    assert list(enum_mismatches(all_enums(OURS)[name])) == []


@pytest.mark.parametrize(("name", "left_out"), LEFT_OUT.items())
def test_the_number_of_a_field_left_out_is_reserved(name: str, left_out: set[str]) -> None:
    declaration = descriptor_pb2.DescriptorProto()
    OURS[name].CopyToProto(declaration)
    reserved = {n for span in declaration.reserved_range for n in range(span.start, span.end)}
    metas = metadata(MESSAGES[name]).meta_by_field_name
    assert {metas[field].number for field in left_out} == reserved


def test_the_service_has_the_same_path_and_message_types() -> None:
    (method,) = FILE.services_by_name["ExternalProcessor"].methods
    ((path, handler),) = service.ExternalProcessorBase().__mapping__().items()
    assert path == f"/{method.containing_service.full_name}/{method.name}"
    assert handler.cardinality.client_streaming == method.client_streaming
    assert handler.cardinality.server_streaming == method.server_streaming
    assert MESSAGES[method.input_type.full_name] is handler.request_type
    assert MESSAGES[method.output_type.full_name] is handler.reply_type


# Random messages

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    betterproto2.TYPE_BOOL: st.booleans(),
    betterproto2.TYPE_BYTES: st.binary(max_size=8),
    betterproto2.TYPE_DOUBLE: st.floats(allow_nan=False),
    betterproto2.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    betterproto2.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    betterproto2.TYPE_STRING: st.text(max_size=6),
    betterproto2.TYPE_UINT32: st.integers(0, 2**32 - 1),
}

# Envoy allows 1 ms and more. Below zero envoy-data-plane 2.2 writes wrong nanoseconds (a floor).
TIMEOUTS = st.timedeltas(datetime.timedelta(milliseconds=1), datetime.timedelta(days=1))

MAX_DEPTH = 5
"""Levels below the message: as many as from ProcessingResponse down to HeaderValue."""


def enum_values(enum: EnumDescriptor) -> st.SearchStrategy[Any]:
    """Declared values, and numbers of a newer Envoy that neither side knows."""
    cls = ENUMS[enum.full_name]
    return st.sampled_from(list(cls)) | st.integers(-(2**31), 2**31 - 1).map(cls)


def single_values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    """Values of a field, or of one element of a repeated field."""
    if field.enum_type is not None:
        return enum_values(field.enum_type)
    if field.message_type is None:
        return SCALARS[PROTO_TYPES[field.type]]
    if field.message_type.full_name == "google.protobuf.BoolValue":
        return st.booleans()
    if field.message_type.full_name == "google.protobuf.Duration":
        return TIMEOUTS
    return messages(field.message_type, depth - 1)


def field_values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    """Values of a whole field outside a oneof."""
    if entry := map_entry(field):
        key, value = entry
        return st.dictionaries(single_values(key, 0), single_values(value, depth), max_size=2)
    if field.is_repeated:
        return st.lists(single_values(field, depth), max_size=2)
    if field.has_presence:
        return st.none() | single_values(field, depth)
    return single_values(field, depth)


@functools.cache
def messages(message: Descriptor, depth: int = MAX_DEPTH) -> st.SearchStrategy[Any]:
    """Instances of envoy-data-plane with any of the fields that our declaration has."""
    cls = MESSAGES[message.full_name]
    # Struct, Value and ListValue contain each other: at the bottom no field holds a message.
    fields = [f for f in message.fields if depth > 0 or f.message_type is None]
    plain = {f.name: f for f in fields if f.containing_oneof is None}
    always = st.fixed_dictionaries(
        {name: field_values(field, depth) for name, field in plain.items()}
    )
    strategy: st.SearchStrategy[dict[str, Any]] = always
    for oneof in message.oneofs:
        choices = [
            st.fixed_dictionaries({f.name: single_values(f, depth)})
            for f in fields
            if f.containing_oneof is oneof
        ]
        chosen = st.one_of(st.just({}), *choices)
        strategy = st.tuples(strategy, chosen).map(lambda pair: {**pair[0], **pair[1]})
    return strategy.map(lambda values: cls(**values))


def single_differences(field: FieldDescriptor, ours: Any, theirs: Any, path: str) -> Iterator[str]:
    """Compare one value, or one element."""
    if field.message_type is not None and field.message_type.full_name not in WRAPPED:
        yield from differences(ours, theirs, path)
        return
    if field.message_type is not None:
        ours = WRAPPED[field.message_type.full_name](ours)
    if ours != theirs or (isinstance(ours, float) and repr(ours) != repr(theirs)):
        yield f"{path}: {ours!r} != {theirs!r}"


def field_differences(field: FieldDescriptor, ours: Any, theirs: Any, path: str) -> Iterator[str]:
    """Compare a whole field."""
    if entry := map_entry(field):
        if set(ours) != set(theirs):
            yield f"{path}: keys {sorted(ours)} != {sorted(theirs)}"
            return
        for key in theirs:
            yield from single_differences(entry[1], ours[key], theirs[key], f"{path}[{key!r}]")
    elif field.is_repeated:
        if len(ours) != len(theirs):
            yield f"{path}: length {len(ours)} != {len(theirs)}"
            return
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from single_differences(field, *pair, f"{path}[{index}]")
    else:
        yield from single_differences(field, ours, theirs, path)


def differences(ours: Message, theirs: Any, path: str = "") -> Iterator[str]:
    """Say where a message of ours does not hold what its counterpart of envoy-data-plane holds."""
    if unknown := len(UnknownFieldSet(ours)):
        yield f"{path}: {unknown} unknown fields"
    fields: Sequence[Any] = ours.DESCRIPTOR.fields
    for field in fields:
        value = getattr(theirs, field.name)
        if field.has_presence and ours.HasField(field.name) != (value is not None):
            yield f"{path}.{field.name}: set {ours.HasField(field.name)} != {value is not None}"
        elif value is not None:
            yield from field_differences(
                field, getattr(ours, field.name), value, f"{path}.{field.name}"
            )


def within(message: Message) -> Iterator[Message]:
    """The message and all messages in it."""
    yield message
    field: Any
    for field, value in message.ListFields():
        if entry := map_entry(field):
            elements = list(value.values()) if entry[1].message_type else []
        elif field.message_type:
            elements = list(value) if field.is_repeated else [value]
        else:
            elements = []
        for element in elements:
            yield from within(element)


def is_canonical(message: Message) -> bool:
    """Whether both libraries must write the same bytes: maps of several entries have no order."""
    fields: list[tuple[Any, Any]] = [p for part in within(message) for p in part.ListFields()]
    return all(len(value) < 2 for field, value in fields if map_entry(field))


def by_number(wire: bytes) -> bytes:
    """The fields of a message in the order of their numbers.

    betterproto2 writes in the order of declaration: Envoy declares ProcessingResponse out of order.
    """
    fields = sorted(betterproto2.parse_fields(wire), key=lambda field: field.number)
    return b"".join(field.raw for field in fields)


@pytest.mark.parametrize("name", MESSAGE_NAMES)
def test_random_messages_agree_in_both_directions(name: str) -> None:
    oracle, ours_class = MESSAGES[name], message_factory.GetMessageClass(OURS[name])
    never_set = set(OURS[name].fields_by_name)
    compared_bytes = 0

    @settings(
        # The messages of the stream have most of the others in them.
        max_examples=150 if name in STREAM_MESSAGES else 40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(theirs=messages(OURS[name]))
    def agrees(theirs: betterproto2.Message) -> None:
        nonlocal compared_bytes
        wire = bytes(theirs)
        ours = ours_class.FromString(wire)
        assert list(differences(ours, theirs)) == []
        ours_wire = ours.SerializeToString()
        assert oracle.parse(ours_wire) == theirs
        if is_canonical(ours):
            assert ours_wire == by_number(wire)
            compared_bytes += 1
        never_set.difference_update(field.name for field, _ in ours.ListFields())

    agrees()
    assert never_set == set()
    assert compared_bytes > 0


# The oracle can fail

Mutation = Callable[[descriptor_pb2.FileDescriptorProto], None]


def field_of(file: descriptor_pb2.FileDescriptorProto, message: str, field: str) -> Any:
    (declaration,) = [m for m in file.message_type if m.name == message]
    (found,) = [f for f in declaration.field if f.name == field]
    return found


def swap_numbers(file: descriptor_pb2.FileDescriptorProto) -> None:
    key, value = field_of(file, "HeaderValue", "key"), field_of(file, "HeaderValue", "value")
    key.number, value.number = value.number, key.number


def change_number(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "ProcessingResponse", "dynamic_metadata").number = 13


def change_scalar_type(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "GrpcStatus", "status").type = descriptor_pb2.FieldDescriptorProto.TYPE_INT32


def change_message_type(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "HttpTrailers", "trailers").type_name = f".{PACKAGE}.HeaderMutation"


def change_enum_type(file: descriptor_pb2.FileDescriptorProto) -> None:
    field = field_of(file, "ProcessingMode", "request_body_mode")
    field.type_name = f".{PACKAGE}.ProcessingMode.HeaderSendMode"


def make_repeated(file: descriptor_pb2.FileDescriptorProto) -> None:
    label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    field_of(file, "HttpBody", "body").label = label


def leave_the_oneof(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "ProcessingResponse", "immediate_response").ClearField("oneof_index")


def rename(file: descriptor_pb2.FileDescriptorProto) -> None:
    field_of(file, "HttpBody", "end_of_stream").name = "end_of_body"


def drop_a_field(file: descriptor_pb2.FileDescriptorProto) -> None:
    (message,) = [m for m in file.message_type if m.name == "ProcessingRequest"]
    del message.field[-1]


def change_enum_value(file: descriptor_pb2.FileDescriptorProto) -> None:
    (enum,) = file.enum_type
    enum.value[-1].number += 1


MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "swapped numbers": (swap_numbers, "HeaderValue.key: number 2, not 1"),
    "a wrong number": (change_number, "dynamic_metadata: number 13, not 8"),
    "another scalar type": (change_scalar_type, "GrpcStatus.status: type 'int32', not 'uint32'"),
    "another message type": (change_message_type, "HttpTrailers.trailers: class"),
    "another enum type": (change_enum_type, "ProcessingMode.request_body_mode: class"),
    "a repeated field": (make_repeated, "HttpBody.body: repeated True, not False"),
    "a field outside its oneof": (leave_the_oneof, "immediate_response: oneof None"),
    "another name": (rename, "HttpBody.end_of_body: not in Envoy's API"),
    "a dropped field": (drop_a_field, "ProcessingRequest.protocol_config: missing"),
    "another enum value": (change_enum_value, "NetworkAuthenticationRequired: 512, not 511"),
}


def mutated(mutation: Mutation) -> dict[str, Descriptor]:
    """Our messages, declared anew in a pool of their own after one change."""
    pool = descriptor_pool.DescriptorPool()
    for dependency in (duration_pb2, struct_pb2, wrappers_pb2):
        pool.AddSerializedFile(dependency.DESCRIPTOR.serialized_pb)
    declaration = descriptor_pb2.FileDescriptorProto()
    FILE.CopyToProto(declaration)
    mutation(declaration)
    pool.AddSerializedFile(declaration.SerializeToString())
    file = pool.FindFileByName(FILE.name)
    return all_messages(list(file.message_types_by_name.values()))


def test_an_unchanged_copy_has_no_mismatch() -> None:
    assert mismatches(mutated(lambda _: None)) == []


@pytest.mark.parametrize(("mutation", "report"), MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_wrong_declaration_is_reported(mutation: Mutation, report: str) -> None:
    assert any(report in line for line in mismatches(mutated(mutation)))


def test_swapped_numbers_are_seen_in_the_values() -> None:
    wrong = message_factory.GetMessageClass(mutated(swap_numbers)[f"{PACKAGE}.HeaderValue"])
    theirs = core.HeaderValue(key=":path", value="/v1/completions")
    assert list(differences(wrong.FromString(bytes(theirs)), theirs)) == [
        ".key: '/v1/completions' != ':path'",
        ".value: ':path' != '/v1/completions'",
    ]


def test_a_wrong_number_is_seen_as_an_unknown_field() -> None:
    name = f"{PACKAGE}.ProcessingResponse"
    wrong = message_factory.GetMessageClass(mutated(change_number)[name])
    theirs = service.ProcessingResponse(dynamic_metadata=google.Struct())
    assert list(differences(wrong.FromString(bytes(theirs)), theirs)) == [
        ": 1 unknown fields",
        ".dynamic_metadata: set False != True",
    ]


def test_negative_zero_and_zero_differ() -> None:
    ours = struct_pb2.Value(number_value=-0.0)
    assert math.copysign(1, ours.number_value) == -1
    assert list(differences(ours, google.Value(number_value=0.0))) == [".number_value: -0.0 != 0.0"]
