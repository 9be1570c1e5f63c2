"""Between the author's types and plain JSON: states, inputs, arguments and results.

The engine sees plain JSON only. Here it becomes what the author declared, and back, with pydantic: a model, a
dataclass, a TypedDict or any other type it knows.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec
from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticInvalidForJsonSchema,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    create_model,
)

from setpoint.kernel.errors import UsageFault

Values = dict[str, Any]


class DefinitionFault(UsageFault):
    """A workflow, capability or agent is declared so that it cannot be run. Nothing was started."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A type with named fields: a state or an input."""

    type: Any
    adapter: TypeAdapter[Any]
    schema: dict[str, Any]
    annotations: Mapping[str, Any]
    required: frozenset[str]
    has_sets: bool

    @classmethod
    def of(cls, declared: Any, what: str) -> Fields:
        """DefinitionFault when the type has no fields that JSON can hold."""
        adapter = adapter_of(declared, what)
        schema = schema_of(adapter, what)
        if "$ref" in schema:  # a type that names itself
            schema = {**schema["$defs"][schema["$ref"].rpartition("/")[2]], "$defs": schema["$defs"]}
        if schema.get("type") != "object" or "properties" not in schema:
            if not isinstance(declared, type) or not issubclass(declared, BaseModel):
                raise DefinitionFault(
                    f"{what} is {declared!r}, which has no named fields",
                    hint="Use a pydantic model, a dataclass or a TypedDict.",
                )
            schema = {**schema, "properties": {}}
        _refuse_two_names(declared, schema, what)
        try:
            annotations = get_type_hints(declared)
        except (NameError, TypeError):
            annotations = {}
        required = frozenset[str](schema.get("required", ()))
        return cls(declared, adapter, schema, annotations, required, _has_sets(schema))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.schema["properties"])

    def accept(self, given: Any) -> Any:
        """The author's object of what somebody gives. ValueError when it does not fit, TypeError for a field that there
        is not: pydantic would drop it without a word."""
        if isinstance(given, Mapping):
            unknown = sorted(str(name) for name in set(given) - self.names)  # type: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            if unknown:
                raise TypeError(f"there is no field {', '.join(unknown)}; there is {', '.join(sorted(self.names))}")
        return self.adapter.validate_python(given)

    def may_hold(self, field: str, kinds: frozenset[str]) -> bool:
        """Whether a field can hold a value of one of these kinds (of ``json_kinds``), as far as its type says."""
        declared = json_kinds(self.schema["properties"][field], self.schema.get("$defs", {}))
        return declared is None or not kinds.isdisjoint(declared)

    def read(self, values: Mapping[str, Any]) -> Any:
        """The author's object of those of ``values`` that are its fields."""
        names = self.schema["properties"]
        return self.adapter.validate_python(
            {name: value for name, value in values.items() if name in names},
            strict=False,  # plain JSON of a date or an enum is text, whatever the author asks of his own callers
        )

    def write(self, state: Any) -> Values:
        """Plain JSON of the author's object. ValueError when JSON cannot hold it, TypeError when it is no such object.

        It is read back: an object changed in place holds whatever was assigned to it, and a state that the next node
        cannot read must never reach the log.
        """
        found = self._plain(self.read(self._plain(state)))
        _refuse_unplain(found, "value")
        return found

    def _plain(self, state: Any) -> Values:
        found = _dumped(self.adapter, state)
        if self.has_sets:
            found = in_order(found, self.schema)
        if not isinstance(found, dict):
            raise TypeError(f"it gave {state!r}, which has no fields")
        if not found.keys() <= self.names:  # type: ignore[reportUnknownMemberType]
            unknown = sorted(set(found) - self.names)  # type: ignore[reportUnknownArgumentType]
            raise TypeError(f"it gave the fields {', '.join(unknown)}, which the state does not have")
        return found  # type: ignore[reportUnknownVariableType]


def plain(adapter: TypeAdapter[Any], value: Any) -> Any:
    """Plain JSON of an author's object, exact: ValueError for what JSON cannot hold."""
    found = _dumped(adapter, value)
    _refuse_unplain(found, "value")
    return found


def _dumped(adapter: TypeAdapter[Any], value: Any) -> Any:
    return adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)


_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


def plain_of(value: Any) -> Any:
    """``plain`` of whatever an author's function returned, models and dates inside lists included."""
    return plain(_ANYTHING, value)


def _refuse_unplain(value: Any, where: str) -> None:
    if value is None or (type(value) is str and value.isascii()):  # most of what there is
        return
    match value:
        case bool() | None:
            pass
        case str():
            if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
                raise ValueError(f"{where} holds half a surrogate pair, which no UTF-8 can")
        case int():
            if not -(2**63) <= value < 2**64:
                raise ValueError(f"{where} is {value}, beyond 64 bits; keep it as text")
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{where} is {value}, which JSON cannot hold")
        case dict():
            for name, item in value.items():  # type: ignore[reportUnknownVariableType]
                _refuse_unplain(name, f"a name in {where}")
                _refuse_unplain(item, f"{where}.{name}")
        case list():
            for number, item in enumerate(value):  # type: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                _refuse_unplain(item, f"{where}[{number}]")
        case _:
            raise ValueError(f"{where} is {value!r}, which JSON cannot hold")


def schema_of(adapter: TypeAdapter[Any], what: str) -> dict[str, Any]:
    """The JSON schema. DefinitionFault when the type has none."""
    try:
        return adapter.json_schema()
    except PydanticUserError as fault:
        raise DefinitionFault(f"{what} cannot be kept as JSON: {fault.message}") from fault


def _refuse_two_names(declared: Any, schema: Mapping[str, Any], what: str) -> None:
    """A field has one name, in the state, in arguments and in the log; and none is left out of the log."""
    fields = getattr(declared, "model_fields", {})
    for name, field in fields.items():
        if name not in schema["properties"]:
            raise DefinitionFault(f"the field {name!r} of {what} has an alias; a field has one name")
        if field.exclude:
            raise DefinitionFault(f"the field {name!r} of {what} is excluded from its JSON; it would be lost")
    if schema.get("additionalProperties") is True:
        raise DefinitionFault(f"{what} allows fields that it does not declare; they would be lost")


def in_order(value: Any, schema: Any) -> Any:
    """Plain JSON with the members of its sets sorted: Python gives them in another order in every process, and what is
    asked, claimed and approved is compared by its bytes. A set inside a union of several lists stays as it is."""
    return _in_order(value, schema, schema.get("$defs", {}))


def _has_sets(schema: Any) -> bool:
    return "'uniqueItems'" in repr(schema)


def _in_order(value: Any, schema: Any, defs: Mapping[str, Any]) -> Any:
    if not isinstance(schema, dict) or not isinstance(value, (dict, list)):
        return value
    if "$ref" in schema:
        return _in_order(value, defs.get(str(schema["$ref"]).rpartition("/")[2]), defs)  # type: ignore[reportUnknownArgumentType]
    kind = "object" if isinstance(value, dict) else "array"
    if "anyOf" in schema:
        options = [defs.get(str(one.get("$ref", "")).rpartition("/")[2], one) for one in schema["anyOf"]]  # type: ignore[reportUnknownVariableType, reportUnknownMemberType, reportUnknownArgumentType]
        fitting = [one for one in options if one.get("type") == kind]  # type: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return _in_order(value, fitting[0], defs) if len(fitting) == 1 else value  # type: ignore[reportUnknownArgumentType]
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties")  # type: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return {name: _in_order(item, known.get(name, other), defs) for name, item in value.items()}  # type: ignore[reportUnknownVariableType, reportUnknownMemberType]
    inner = [_in_order(item, schema.get("items"), defs) for item in value]  # type: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return sorted(inner, key=msgspec.json.Encoder(order="sorted").encode) if schema.get("uniqueItems") else inner  # type: ignore[reportUnknownMemberType]


def json_kinds(schema: Any, defs: Mapping[str, Any] | None = None) -> frozenset[str] | None:
    """object, array, string, number, boolean, null: what values of a JSON schema are. None when it does not say."""
    known: Mapping[str, Any] = schema.get("$defs", {}) if defs is None else defs
    if "$ref" in schema:
        return json_kinds(known.get(str(schema["$ref"]).rpartition("/")[2], {}), known)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            each = [json_kinds(option, known) for option in schema[union]]
            return None if None in each else frozenset[str]().union(*filter(None, each))
    kind = schema.get("type")
    return frozenset({"number" if kind == "integer" else kind}) if isinstance(kind, str) else None


_WORDS = ("title", "description", "examples", "$comment", "deprecated")


def structure(schema: Any) -> Any:
    """A JSON schema without its words, and without an order where there is none: what a definition's digest is of.

    Editing a docstring strands no run.
    """
    if isinstance(schema, list):
        return [structure(item) for item in schema]  # type: ignore[reportUnknownVariableType]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():  # type: ignore[reportUnknownVariableType]
        if name in _WORDS:
            continue
        if name in ("properties", "$defs", "patternProperties") and isinstance(value, dict):
            found[name] = {field: structure(item) for field, item in value.items()}  # type: ignore[reportUnknownVariableType]
        elif name in ("default", "const", "enum"):
            found[name] = value
        else:
            found[str(name)] = structure(value)  # type: ignore[reportUnknownArgumentType]
    if found.get("uniqueItems") and isinstance(found.get("default"), list):  # of a set, whose order is chance
        found["default"] = sorted(found["default"], key=repr)
    return found


def adapter_of(declared: Any, what: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(declared)
    except PydanticUserError as fault:
        raise DefinitionFault(f"{what} is {declared!r}, which cannot be kept as JSON: {fault.message}") from fault
    except NameError as fault:
        raise DefinitionFault(f"{what} names a type that is not known where it is declared: {fault}") from fault


@dataclass(frozen=True, slots=True)
class Signature:
    """What a capability takes and gives, read off its function: ``(ctx, name: type, ...) -> type``."""

    arguments: type[BaseModel]
    schema: dict[str, Any]
    result: TypeAdapter[Any]
    result_type: Any
    result_schema: dict[str, Any]
    has_sets: bool

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, *, has_result: bool = True) -> Signature:
        """DefinitionFault when the first parameter is not the context, or an annotation is missing or unknown."""
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].name not in ("ctx", "context", "_ctx", "_"):
            raise DefinitionFault(
                f"the first parameter of capability {name} must be ctx, the context of the call",
                hint=f"async def {name}(ctx: Context, ...) -> ...",
            )
        try:
            hints = get_type_hints(function, include_extras=True)
        except NameError as fault:
            raise DefinitionFault(
                f"an annotation of capability {name} is not known in its module: {fault}",
                hint="Define the type at the top of the module, before the capability.",
            ) from fault
        fields: dict[str, Any] = {}
        for parameter in parameters[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise DefinitionFault(f"{parameter} of capability {name} has no name to pass it by")
            if parameter.name not in hints:
                raise DefinitionFault(f"the parameter {parameter.name} of capability {name} has no type")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default)
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        try:
            model = create_model(f"{name}_arguments", __config__=config, **fields)
            schema = model.model_json_schema()
        except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as fault:
            raise DefinitionFault(
                f"a parameter of capability {name} cannot be kept as JSON: {fault.message}"
            ) from fault
        result_type = hints.get("return", type(None)) if has_result else type(None)
        what = f"the result of capability {name}"
        result = adapter_of(result_type, what)
        return cls(model, schema, result, result_type, schema_of(result, what), _has_sets(schema))

    def names(self) -> Mapping[str, bool]:
        """Parameter names, and whether each must be given."""
        return {name: field.is_required() for name, field in self.arguments.model_fields.items()}

    def read(self, arguments: Mapping[str, Any]) -> BaseModel:
        return self.arguments.model_validate(dict(arguments), strict=False)

    def complete(self, arguments: Mapping[str, Any]) -> Values:
        """The arguments checked, with defaults, as plain JSON."""
        found = self.read(arguments).model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
        if self.has_sets:
            found = in_order(found, self.schema)
        _refuse_unplain(found, "arguments")
        return found


def fresh(values: Values) -> Values:
    """A copy that the author's code may change as it likes: a field of type Any is handed to it as it is."""
    return {
        name: msgspec.json.decode(msgspec.json.encode(value)) if isinstance(value, (dict, list)) else value
        for name, value in values.items()
    }


def unpacked(model: BaseModel) -> Values:
    """The fields as the author's objects."""
    return {name: getattr(model, name) for name in type(model).model_fields}


def takes(function: Callable[..., Any]) -> int:
    """How many positional parameters a pure function takes: 1 is the state, 2 the input too, 0 that it takes none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters if one.kind in kinds and one.default is one.empty]
    return len(needed) or int(any(one.kind in (*kinds, inspect.Parameter.VAR_POSITIONAL) for one in parameters))
