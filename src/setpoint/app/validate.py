"""Every fault of a document against its schema, each at its place and in words that say what to write.

The schema finds the shape (jsonschema-rs reports all errors with their paths); ``format`` finds the meaning of single
texts: expressions compile, patterns and regular expressions are well formed, amounts are exact.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from setpoint.app.document import Document, Path, Problem, dotted
from setpoint.app.schema import (
    COMMIT_PATTERN,
    DIGEST_PATTERN,
    ENV_PATTERN,
    HOST_PATTERN,
    ID_PATTERN,
    ROUTE_KINDS,
    TOOL_PATTERN,
    schema,
)
from setpoint.kernel.expression import (
    CALL_FIELDS,
    CHECK_VARIABLES,
    RESULT_FIELDS,
    RESULT_VARIABLES,
    VARIABLES,
    BadExpression,
    check_expression,
)
from setpoint.kernel.globs import BadGlob, check_glob
from setpoint.kernel.units import DURATION_PATTERN, SIZE_PATTERN, parse_size, parse_usd_micros

WAYS: Final = ("run", "expr", "probe", "oracle")

_MEANING: Final = {
    DURATION_PATTERN: "a duration with its unit, such as 500ms, 60s, 20m, 24h or 1d",
    SIZE_PATTERN: "a size with its unit, such as 64Ki, 10M or 1Gi",
    ID_PATTERN: "a name of letters, digits, '.', '_' and '-', at most 63, starting with a letter or digit",
    TOOL_PATTERN: "a tool name",
    HOST_PATTERN: "host:port, such as pypi.org:443",
    DIGEST_PATTERN: "sha256: and 64 hex digits",
    COMMIT_PATTERN: "a commit in lower-case hex, 7 to 64 digits",
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": "module:function, such as shop.probes:ledger_balanced",
    "^/": "an absolute path",
}


def validate(document: Document, kind: str) -> list[Problem]:
    """All problems of one document, in the order of the file; empty when it may be built."""
    shape = schema(kind)
    problems = [
        problem
        for error in _validator(kind).iter_errors(document.value)
        for problem in _explained(document, shape, error)
    ]
    for path, rule, value in _annotated(shape, document.value, ()):
        problems += _format_problems(document, path, rule, value)
    return sorted(problems, key=lambda problem: (problem.line, problem.column, problem.path))


@lru_cache(maxsize=8)
def _validator(kind: str) -> Any:
    import jsonschema_rs  # 20 ms of CPU that `setpoint --help` need not pay

    return jsonschema_rs.Draft202012Validator(schema(kind))


# The shape.


def _explained(document: Document, shape: dict[str, Any], error: Any) -> Iterable[Problem]:
    path: Path = tuple(error.instance_path)
    rules = _resolve(shape, error.schema_path[:-1])
    value = error.instance
    match error.kind.name:
        case "additionalProperties":
            return [_unknown_key(document, path, rules, key) for key in error.kind.unexpected]
        case "required":
            return [_missing(document, path, rules, error.kind.property)]
        case "oneOf":
            return _neither(document, path, rules, value)
        case "type":
            wanted = " or ".join(_article(name) for name in error.kind.types)
            return [
                document.problem(
                    path,
                    f"must be {wanted}, found {_found(document, path, value)}",
                    _quote_it(document, path, error.kind.types, rules),
                )
            ]
        case "enum":
            return [_not_among(document, path, value, rules["enum"])]
        case "const":
            return [document.problem(path, f"must be {rules['const']!r}, found {_found(document, path, value)}")]
        case "pattern":
            wanted = _MEANING.get(rules["pattern"], f"text that matches {rules['pattern']}")
            return [document.problem(path, f"{value!r} is not {wanted}")]
        case "minimum":
            return [document.problem(path, f"must be at least {rules['minimum']}, found {value}")]
        case "maximum":
            return [document.problem(path, f"must be at most {rules['maximum']}, found {value}")]
        case "minLength" | "minItems":
            return [document.problem(path, "must not be empty")]
        case "maxLength":
            return [document.problem(path, f"is longer than {rules['maxLength']} characters")]
        case "uniqueItems":
            return [document.problem(path, f"holds {_twice(value)} twice")]
        case _:
            return [document.problem(path, error.message)]


def _resolve(shape: Any, path: Iterable[str | int]) -> Any:
    for part in path:
        shape = shape[part]
    return shape


def _unknown_key(document: Document, path: Path, rules: dict[str, Any], key: str) -> Problem:
    known = list(rules.get("properties", ()))
    if not known and "patternProperties" in rules:
        return document.problem((*path, key), f"{key!r} is not a variable name of the form {ENV_PATTERN}", at_key=True)
    if (path == () and key == "status") or path == ("status",):
        return document.problem((*path, key), "status is written by the runtime only", "remove it", at_key=True)
    advice = _nearest(key, known)
    if not advice and set(WAYS) <= set(known):
        advice = "a check is judged by run, expr, probe or oracle; nothing a model says can be one"
    advice = advice or f"known here: {', '.join(known)}"
    return document.problem((*path, key), "unknown key", advice, at_key=True)


def _missing(document: Document, path: Path, rules: dict[str, Any], key: str) -> Problem:
    wanted = rules["properties"][key]
    example = wanted.get("examples", [None])[0]
    advice = f"for example {key}: {_inline(example)}" if example is not None else ""
    return document.problem(path, f"{key!r} is missing: {_first_sentence(wanted['description'])}", advice, at_key=True)


def _neither(document: Document, path: Path, rules: dict[str, Any], value: Any) -> list[Problem]:
    """A ``oneOf`` that does not hold. There are four in the schema, and each deserves its own words."""
    if "properties" in rules:
        if not isinstance(value, dict):
            return []  # the wrong type is reported by `type`
        given = [way for way in WAYS if way in value]
        if len(given) > 1:
            message = f"{' and '.join(given)} both say how it is judged; keep exactly one"
            return [document.problem((*path, given[1]), message, at_key=True)]
        advice = "give exactly one of run, expr, probe, oracle, for example run: python -m pytest -q"
        return [document.problem(path, "nothing says how it is judged", advice, at_key=True)]
    name = path[-1] if path else ""
    if name == "network" and isinstance(value, list):
        return [
            document.problem(
                (*path, index), f"{_found(document, (*path, index), item)} is not {_MEANING[HOST_PATTERN]}"
            )
            for index, item in enumerate(value)
            if not (isinstance(item, str) and re.fullmatch(HOST_PATTERN, item))
        ] or [document.problem(path, f"holds {_twice(value)} twice")]
    if name == "network":
        wanted = "must be none or a list of host:port pairs"
    elif name == "usd":
        wanted = "must be an amount of dollars of zero or more, such as 2.50"
    elif name == "status":
        return [document.problem(path, "status is written by the runtime only", "remove it", at_key=True)]
    else:
        wanted = "fits none of its forms"
    return [document.problem(path, f"{wanted}, found {_found(document, path, value)}")]


def _not_among(document: Document, path: Path, value: Any, allowed: list[Any]) -> Problem:
    listed = ", ".join(str(item) for item in allowed)
    if path and path[-1] == "level" and isinstance(value, str) and value in ("claim", "self-report", "none"):
        return document.problem(
            path, f"{value!r} is no evidence: what a model says is never accepted", f"use one of {listed}"
        )
    message = f"must be one of {listed}; found {_found(document, path, value)}"
    return document.problem(path, message, _nearest(value, [str(item) for item in allowed]))


def _article(name: str) -> str:
    return {"array": "a list", "object": "a mapping", "integer": "an integer", "null": "null"}.get(name, f"a {name}")


def _found(document: Document, path: Path, value: Any) -> str:
    written = document.marks[path].text if path in document.marks else ""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the boolean {written or str(value).lower()}"
        case int():
            return f"the integer {value}"
        case float():
            return f"the number {written or value}"
        case str():
            return repr(value if len(value) <= 60 else value[:57] + "...")
        case list():
            return "a list"
        case _:
            return "a mapping"


def _quote_it(document: Document, path: Path, wanted: list[str], rules: dict[str, Any]) -> str:
    """The commonest slips: an unquoted word that YAML reads as something else, and a number without its unit."""
    mark = document.mark(path)
    if mark.style == "" and mark.text:
        if rules.get("pattern") in (DURATION_PATTERN, SIZE_PATTERN):
            return f"say the unit, as in {rules['examples'][0]}"
        if "string" in wanted:
            return f'write it in quotes: "{mark.text}"'
        if "integer" in wanted and re.fullmatch(r"[0-9]{1,3}([_,][0-9]{3})+", mark.text):
            return f"write {re.sub('[_,]', '', mark.text)}"
        if "integer" in wanted and re.fullmatch(r"0[0-9]+", mark.text):
            return f"write {mark.text.lstrip('0') or '0'}: YAML readers disagree on leading zeros"
    if "integer" in wanted and mark.style in ("'", '"') and mark.text.isdigit():
        return "write it without quotes"
    return ""


def _nearest(word: Any, known: list[str]) -> str:
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    if not close:
        folded = {name.replace("_", "").lower(): name for name in known}
        same = folded.get(str(word).replace("_", "").replace("-", "").lower())
        close = [same] if same else []
    return f"did you mean {close[0]!r}?" if close else ""


def _twice(items: list[Any]) -> str:
    return next((repr(item) for index, item in enumerate(items) if item in items[:index]), "an item")


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].rstrip(".")


def _inline(value: Any) -> str:
    """A value as one would write it in a line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][\w ./-]*", value):
        return value
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


# The meaning of single texts.


def _annotated(rules: Any, value: Any, path: Path) -> Iterable[tuple[Path, dict[str, Any], Any]]:
    """Every scalar whose schema has something to say beyond its shape."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in rules.get("properties", {}):
                yield from _annotated(rules["properties"][key], item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if "items" in rules:
                yield from _annotated(rules["items"], item, (*path, index))
    elif "format" in rules or rules.get("type") in ("integer", "boolean"):
        yield path, rules, value


def _format_problems(document: Document, path: Path, rules: dict[str, Any], value: Any) -> list[Problem]:
    if isinstance(value, float) and rules.get("type") == "integer" and value.is_integer():
        # JSON Schema takes 30.0 for an integer; a contract counts, and its digest knows no decimals.
        return [document.problem(path, f"must be an integer, found the number {document.mark(path).text}")]
    if (
        isinstance(value, bool)
        and rules.get("type") == "boolean"
        and document.mark(path).text.lower() in ("yes", "no", "on", "off")
    ):
        return [
            document.problem(
                path, f"{document.mark(path).text!r} is read differently by YAML readers", "write true or false"
            )
        ]
    check = _FORMATS.get(rules.get("format", ""))
    if check is None or isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return []
    text = value if isinstance(value, str) else document.mark(path).text
    if not text or (rules["format"] == "usd" and isinstance(value, str)):  # a quoted amount has a pattern
        return []
    try:
        check(text)
    except BadExpression as bad:
        advice = _nearest(bad.name, list(bad.known)) if bad.name else ""
        message = f"the expression does not hold together: {bad.message}"
        return [_inside(document, path, bad.line, bad.column, message, advice)]
    except re.error as bad:
        return [_inside(document, path, bad.lineno or 1, bad.colno or 1, f"not a regular expression: {bad.msg}")]
    except (BadGlob, ValueError, OverflowError) as bad:
        return [document.problem(path, str(bad))]
    return []


def _inside(document: Document, path: Path, line: int, column: int, message: str, advice: str = "") -> Problem:
    """A problem at a position inside a text value."""
    return Problem(document.file, *document.inside(path, line, column), dotted(path), message, advice)


def _check_size(text: str) -> None:
    if re.fullmatch(SIZE_PATTERN, text):  # otherwise the shape has said so
        parse_size(text)


def _check_usd(text: str) -> None:
    if not text.startswith("-"):
        parse_usd_micros(text)


def _check_regex(text: str) -> None:
    if re.compile(text).search(""):
        raise ValueError(f"{text!r} matches the empty text, so it would blank between any two characters")


def _check_route(text: str) -> None:
    kind, colon, rest = text.partition(":")
    if kind not in ROUTE_KINDS or not colon or not rest:
        advice = _nearest(kind, list(ROUTE_KINDS))
        raise ValueError(
            f"{text!r} is not a route of the form kind:name; kinds are {', '.join(ROUTE_KINDS)}"
            + (f"; {advice}" if advice and kind not in ROUTE_KINDS else "")
        )


_FORMATS: Final[dict[str, Callable[[str], object]]] = {
    "cel-check": lambda text: check_expression(text, CHECK_VARIABLES),
    "cel-call": lambda text: check_expression(text, VARIABLES, CALL_FIELDS),
    "cel-result": lambda text: check_expression(text, RESULT_VARIABLES, RESULT_FIELDS),
    "glob": check_glob,
    "regex": _check_regex,
    "size": _check_size,
    "usd": _check_usd,
    "route": _check_route,
}
