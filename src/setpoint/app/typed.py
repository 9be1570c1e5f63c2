"""Between the author's types and plain JSON: states, inputs, arguments and results.

The engine sees plain JSON only. Here it becomes what the author declared, and back, with pydantic: a model, a
dataclass, a TypedDict or any other type it knows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticSchemaGenerationError, TypeAdapter, create_model

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

    @classmethod
    def of(cls, declared: Any, what: str) -> Fields:
        """DefinitionFault when the type has no fields that JSON can hold."""
        adapter = adapter_of(declared, what)
        schema = adapter.json_schema()
        if schema.get("type") != "object" or "properties" not in schema:
            if not isinstance(declared, type) or not issubclass(declared, BaseModel):
                raise DefinitionFault(
                    f"{what} is {declared!r}, which has no named fields",
                    hint="Use a pydantic model, a dataclass or a TypedDict.",
                )
            schema = {**schema, "properties": {}}
        try:
            annotations = get_type_hints(declared)
        except (NameError, TypeError):
            annotations = {}
        return cls(declared, adapter, schema, annotations, frozenset(schema.get("required", ())))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.schema["properties"])

    def read(self, values: Mapping[str, Any]) -> Any:
        """The author's object of those of ``values`` that are its fields."""
        names = self.schema["properties"]
        return self.adapter.validate_python({name: value for name, value in values.items() if name in names})

    def write(self, state: Any) -> Values:
        """Plain JSON of the author's object."""
        return self.adapter.dump_python(state, mode="json")


def adapter_of(declared: Any, what: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(declared)
    except PydanticSchemaGenerationError as fault:
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
        except PydanticSchemaGenerationError as fault:
            raise DefinitionFault(
                f"a parameter of capability {name} cannot be kept as JSON: {fault.message}"
            ) from fault
        result_type = hints.get("return", type(None)) if has_result else type(None)
        result = adapter_of(result_type, f"the result of capability {name}")
        return cls(model, model.model_json_schema(), result, result_type, result.json_schema())

    def names(self) -> Mapping[str, bool]:
        """Parameter names, and whether each must be given."""
        return {name: field.is_required() for name, field in self.arguments.model_fields.items()}

    def read(self, arguments: Mapping[str, Any]) -> BaseModel:
        return self.arguments.model_validate(dict(arguments))

    def complete(self, arguments: Mapping[str, Any]) -> Values:
        """The arguments checked, with defaults, as plain JSON."""
        return self.read(arguments).model_dump(mode="json")


def unpacked(model: BaseModel) -> Values:
    """The fields as the author's objects."""
    return {name: getattr(model, name) for name in type(model).model_fields}


def takes(function: Callable[..., Any]) -> int:
    """How many positional parameters a pure function takes: 1 is the state, 2 the input too."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters if one.kind in kinds and one.default is one.empty]
    return len(needed)
