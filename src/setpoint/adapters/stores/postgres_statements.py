"""The user's statements on Postgres: named parameters, and what a statement may not be.

A statement is one command (it is sent in the protocol that takes one only) that reads or changes rows. Refused are
every other command, a name in the schema ``setpoint``, and ``set_config``. How strong that is: it stops mistakes and
statements pasted together; it does not stop functions, triggers and views of the user's own that reach into Setpoint's
tables, for which there is one user on both sides. Whoever needs that keeps the user's tables under a role of their
own; that the events are append-only holds for everybody but the owner of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
from psycopg import errors

from setpoint.adapters.stores.beside import statement_refused, wrong_row_count
from setpoint.adapters.stores.postgres_faults import words_of
from setpoint.ports.log import Statement

_COMMANDS = frozenset({"insert", "update", "delete", "merge", "with", "select", "values"})
_CHANGES = ("INSERT", "UPDATE", "DELETE", "MERGE")

_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<text> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | \$(?P<tag>[A-Za-z_]\w*)?\$.*?\$(?(tag)(?P=tag))\$ )
    | (?P<quoted> (?:[uU]&)?"(?:[^"]|"")*" )
    | (?P<cast> :: | := )
    | :(?P<parameter> [A-Za-z_]\w* )
    | (?P<word> [^\W\d][\w$]* )
    | (?P<other> \s+ | . )
    """,
    re.DOTALL | re.VERBOSE,
)


def run_statement(db: psycopg.Connection, stream: str, statement: Statement) -> None:
    """Run it in the open transaction. StatementRefused, and the transaction is to be taken back to a savepoint.

    psycopg.OperationalError and InternalError when the trouble is the server's and not the statement's.
    """
    try:
        sql = with_psycopg_names(statement.sql).encode()
    except ValueError as error:
        raise statement_refused(stream, statement, str(error)) from error
    try:
        done = db.execute(sql, statement.parameters, binary=True)  # binary: never the protocol for several commands
    except (errors.LockNotAvailable, errors.QueryCanceled) as error:
        raise statement_refused(stream, statement, words_of(error)) from error
    except (psycopg.OperationalError, psycopg.InternalError):
        raise
    except (psycopg.Error, ValueError) as error:
        words = words_of(error) if isinstance(error, psycopg.Error) else str(error)
        raise statement_refused(stream, statement, words) from error
    changed = done.rowcount if (done.statusmessage or "").startswith(_CHANGES) else 0
    if changed != statement.rows:
        raise wrong_row_count(stream, statement, changed)


def with_psycopg_names(sql: str) -> str:
    """The statement with ``%(name)s`` for ``:name``. ValueError says why it may not be run."""
    made: list[str] = []
    words: list[str] = []  # the last tells whether a dot makes it a schema
    for kind, token in _tokens(sql):
        if kind == "parameter":
            made.append(f"%({token[1:]})s")
            words.append(token)
            continue
        made.append(token.replace("%", "%%"))
        if kind == "word":
            words.append(token.lower())
        elif kind == "quoted":
            if token[0] in "uU":
                raise ValueError('a name may not be written as U&"..."')
            words.append(token[1:-1])
        elif kind == "text" or (token.strip() and kind == "other"):
            if token == "." and words and words[-1] == "setpoint":
                raise ValueError("it names the schema setpoint, and may only touch tables of the user's own")
            words.append(token)
        if words and words[-1] == "set_config":
            raise ValueError("it may not change settings")
    first = next((word for word in words if word != "("), "")
    if first not in _COMMANDS:
        raise ValueError(f"it begins with {first!r}, and may only read and change rows")
    return "".join(made)


def _tokens(sql: str) -> Iterator[tuple[str, str]]:
    for found in _TOKEN.finditer(sql):
        kind = next(name for name, token in found.groupdict().items() if token is not None and name != "tag")
        yield kind, found.group()
