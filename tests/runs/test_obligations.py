"""A definition is proved before it runs (R034, R035, R192; issue 3 item 2)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings

from setpoint import App, capability
from setpoint.app.capability import Context
from setpoint.app.typed import DefinitionFault
from setpoint.kernel.flow import (
    AnyNode,
    Approval,
    ApprovalTerms,
    Block,
    Branch,
    Call,
    Child,
    Definition,
    Map,
    Parallel,
    Repeat,
    Use,
    in_same_rounds,
    join,
)
from setpoint.kernel.obligations import broken_obligations, prove
from setpoint.kernel.pathways import Walk, ways
from setpoint.kernel.protocol import PARTS, CallModel, Part, check_call, check_protocol

from .definitions import OPS, branch, call, definition, definitions, step, wire

SOMETIMES = ApprovalTerms(by=("ops",), is_conditional=True)


def standing(found: Definition) -> dict[str, str]:
    return {obligation.name: obligation.standing for obligation in prove(found).obligations}


def broken(found: Definition) -> list[str]:
    return [name for name, how in standing(found).items() if how == "broken"]


def path_of(found: Definition) -> tuple[str, ...]:
    [one] = prove(found).broken
    return one.path


def test_a_sound_definition_breaks_nothing_and_every_line_of_its_proof_holds():
    found = definition(call("load"), branch("d", yes=(call("pay", "compensable"), wire()), no=(step("tell"),)))
    assert broken_obligations(found) == []
    assert set(standing(found).values()) == {"holds"}
    assert prove(found).ways == 2


def test_no_path_reaches_a_capability_outside_the_boundary():
    """R034, R035"""
    found = definition(step("a"), branch("d", yes=(call("pay", "keyed"),), no=(step("b"),)), boundary=("do_load",))
    [one] = prove(found).broken
    assert one.path == ("w/a", "w/d", "w/d/yes/pay")
    assert "do_pay" in one.message and "outside the boundary" in one.message


def test_an_irreversible_call_without_its_approval_is_shown_with_the_shortest_path_to_it():
    found = definition(
        branch("d", long=(step("a"), step("b")), short=(step("c"),)),
        wire(approval=None),
    )
    assert broken(found) == ["gates"]
    assert path_of(found) == ("w/d", "w/d/short/c", "w/wire")


@pytest.mark.parametrize(
    "body",
    [
        (wire(),),
        (Approval(name="ask", terms=OPS, of="w/wire"), step("a"), wire(approval=None)),
        (Approval(name="ask", terms=OPS, of="w/d/yes/wire"), branch("d", yes=(wire(approval=None),), no=(step("a"),))),
        (
            branch(
                "d",
                yes=(Approval(name="ask", terms=OPS, of="w/d/yes/wire"), wire(approval=None)),
                no=(step("a"),),
            ),
        ),
        (
            Map(
                name="m",
                item="i",
                at_most=1,
                at_once=1,
                body=(Approval(name="ask", terms=OPS, of="w/m/*/wire"), wire(approval=None)),
            ),
        ),
    ],
)
def test_an_approval_on_every_path_to_the_call_is_enough(body: Block):
    assert broken_obligations(definition(*body)) == []


@pytest.mark.parametrize(
    "body",
    [
        # on one path only
        (branch("d", yes=(Approval(name="ask", terms=OPS, of="w/wire"),), no=(step("a"),)), wire(approval=None)),
        # beside it, not before it
        (
            Parallel(
                name="p",
                branches={"a": (Approval(name="ask", terms=OPS, of="w/p/b/wire"),), "b": (wire(approval=None),)},
            ),
        ),
        # behind it
        (wire(approval=None), Approval(name="ask", terms=OPS, of="w/wire")),
        # of going on, not of this call
        (Approval(name="ask", terms=OPS), wire(approval=None)),
        # asked once for a call that is made in every round
        (
            Approval(name="ask", terms=OPS, of="w/m/*/wire"),
            Map(name="m", item="i", at_most=1, at_once=1, body=(wire(approval=None),)),
        ),
    ],
)
def test_an_approval_that_is_not_on_every_path_before_the_call_is_not_enough(body: Block):
    assert "gates" in broken(definition(*body))


def test_an_approval_with_a_condition_is_allowed_and_shown_as_conditional():
    for body in (
        (wire(approval=SOMETIMES),),
        (Approval(name="ask", terms=SOMETIMES, of="w/wire"), wire(approval=None)),
    ):
        found = definition(*body)
        assert broken_obligations(found) == []
        gates = next(one for one in prove(found).obligations if one.name == "gates")
        assert gates.standing == "conditional"
        assert "w/wire" in gates.notes[0]


def test_two_rules_about_one_call_are_refused_since_the_weaker_one_would_do():
    interns = ApprovalTerms(by=("intern",))
    for ask, own in ((interns, OPS), (SOMETIMES, OPS)):
        found = definition(Approval(name="ask", terms=ask, of="w/wire"), wire(approval=own))
        assert broken(found) == ["approvals"]
    same = definition(
        branch(
            "d",
            a=(Approval(name="ask", terms=OPS, of="w/wire"),),
            b=(step("x"), Approval(name="ask2", terms=OPS, of="w/wire")),
        ),
        wire(approval=None),
    )
    assert "approvals" in broken(same), "an approval inside a case stands for a call of that case"


def test_an_approval_names_somebody_who_may_give_it():
    for by in ((), ("",), (" ",)):
        assert broken(definition(wire(approval=ApprovalTerms(by=by)))) == ["approvals"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ((wire("a"), step("s"), wire("b")), ("w/a", "w/s", "w/b")),
        ((branch("d", x=(wire("a"),), y=(step("s"),)), wire("b")), ("w/d", "w/d/x/a", "w/b")),
        ((Repeat(name="r", at_most=5, body=(wire("a"),)),), ("w/r", "w/r/0/a", "w/r/1/a")),
        ((Map(name="m", item="i", at_most=5, at_once=2, body=(wire("a"),)),), ("w/m", "w/m/0/a", "w/m/1/a")),
        (
            (Parallel(name="p", branches={"x": (step("s"), wire("a")), "y": (wire("b"), step("t"))}),),
            ("w/p", "w/p/x/s", "w/p/x/a", "w/p/y/b"),
        ),
        (
            (wire("a"), Child(name="c", workflow="k", version=1, definition="d", effects=("irreversible",))),
            ("w/a", "w/c"),
        ),
    ],
)
def test_at_most_one_irreversible_call_is_on_any_path(body: Block, path: tuple[str, ...]):
    """R192"""
    found = definition(*body)
    assert broken(found) == ["one pivot"]
    assert sorted(path_of(found)) == sorted(path)


def test_irreversible_calls_in_different_cases_or_one_round_are_one():
    """R192"""
    assert broken(definition(branch("d", x=(wire("a"),), y=(wire("b"),)))) == []
    assert broken(definition(Map(name="m", item="i", at_most=1, at_once=1, body=(wire("a"),)))) == []


@pytest.mark.parametrize(
    "body",
    [
        (wire(), call("pay", "compensable")),
        (wire(), branch("d", a=(call("pay", "compensable"),), b=(step("s"),))),
        (Parallel(name="p", branches={"x": (call("pay", "compensable"),), "y": (wire(),)}),),
        (wire(), call("pay", "keyed", has_compensator=True)),
        (wire(), Child(name="c", workflow="k", version=1, definition="d", effects=("compensable",))),
    ],
)
def test_nothing_that_can_be_taken_back_comes_after_what_cannot(body: Block):
    """R192"""
    assert broken(definition(*body)) == ["pivot last"]


def test_what_only_runs_beside_a_breach_is_not_on_the_path_that_shows_it():
    beside = tuple(step(f"s{n}") for n in range(4))
    found = definition(Parallel(name="p", branches={"x": beside, "y": (wire("a"),), "z": (*beside, wire("b"))}))
    assert path_of(found) == ("w/p", "w/p/y/a", *(f"w/p/z/s{n}" for n in range(4)), "w/p/z/b")


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ((), "blocks"),
        ((branch("d", a=(step("s"),), b=()),), "blocks"),
        ((branch("d"), step("s")), "blocks"),
        ((Map(name="m", item="i", at_most=0, at_once=1, body=(step("s"),)),), "bounds"),
        ((Repeat(name="r", at_most=0, body=(step("s"),)), step("t")), "bounds"),
        ((Branch(name="d", cases={"a/b": (step("s"),)}),), "names"),
        ((Branch(name="d", cases={"*": (step("s"),)}),), "names"),
    ],
)
def test_what_is_empty_unbounded_or_unnameable_is_refused_and_nothing_else_is_claimed(body: Block, name: str):
    found = standing(definition(*body))
    assert found[name] == "broken"
    assert found["gates"] == found["one pivot"] == "not tried"


def test_a_call_whose_lost_reply_only_a_person_could_settle_is_remarked_on():
    found = definition(
        call("a", "reversible"), call("b", "reversible", has_probe=True), call("c", "reversible", dedups=True)
    )
    [remark] = prove(found).remarks
    assert "w/a may end in EffectUnknown" in remark
    assert broken_obligations(found) == []


def test_a_definition_with_too_many_paths_is_refused_in_words():
    """R035: what cannot be proved does not start."""
    block: Block = (step("x"),)
    for n in range(9):
        block = (Parallel(name=f"p{n}", branches={"a": block, "b": block}),)
    [one] = [b for b in broken_obligations(definition(*block)) if "too many paths" in b.message]
    assert "workflow of its own" in one.hint


def test_a_thousand_nodes_are_proved_in_half_a_second():
    body = [
        node for n in range(330) for node in (step(f"s{n}"), branch(f"b{n}", x=(step("x"),), y=(call("y", "keyed"),)))
    ]
    began = time.process_time()
    proof = prove(definition(*body, wire()))
    assert proof.broken == ()
    assert proof.positions < 3_000
    assert time.process_time() - began < 0.5
    assert proof.ways == 2**330


def test_an_app_whose_workflow_breaks_an_obligation_does_not_open():
    """R035"""
    from pydantic import BaseModel

    class State(BaseModel):
        id: str

    async def send(ctx: Context, id: str) -> None: ...

    app = App("bank")
    app.workflow("out", input=State, state=State).capability("send", capability(effect="irreversible")(send))
    with pytest.raises(DefinitionFault, match="out/send is irreversible, and on this path nobody is asked first"):
        app.check()


# Against every path, one by one

Event = tuple[str, AnyNode]


def every_path(block: Block, at: str) -> Iterator[tuple[Event, ...]]:
    """Every path through a block, rounds up to two, every order of what is parallel. Naive on purpose."""
    if not block:
        yield ()
        return
    node, path = block[0], join(at, block[0].name)
    for rest in list(every_path(block[1:], at)):
        for inner in inside(node, path):
            yield ((path, node), *inner, *rest)


def inside(node: AnyNode, path: str) -> Iterator[tuple[Event, ...]]:
    match node:
        case Branch(cases=cases):
            for label, block in cases.items():
                yield from every_path(block, join(path, label))
        case Use(body=body):
            yield from every_path(body, path)
        case Parallel(branches=branches):
            for one in product(*(list(every_path(block, join(path, name))) for name, block in branches.items())):
                yield from orders(one)
        case Map(body=body, at_most=at_most):
            for rounds in range(min(2, at_most) + 1):
                for one in product(*(list(every_path(body, join(path, str(n)))) for n in range(rounds))):
                    yield from orders(one)
        case Repeat(body=body, at_most=at_most):
            for rounds in range(1, min(2, at_most) + 1):
                for one in product(*(list(every_path(body, join(path, str(n)))) for n in range(rounds))):
                    yield tuple(event for events in one for event in events)
        case _:
            yield ()


def orders(lists: tuple[tuple[Event, ...], ...]) -> Iterator[tuple[Event, ...]]:
    lists = tuple(one for one in lists if one)
    if not lists:
        yield ()
    for at, one in enumerate(lists):
        for rest in orders((*lists[:at], one[1:], *lists[at + 1 :])):
            yield (one[0], *rest)


def breaches(path: tuple[Event, ...]) -> dict[str, int]:
    """What a path breaks, with how many nodes it takes to see it."""
    found: dict[str, int] = {}
    asked: set[str] = set()
    has_pivot = False
    for length, (at, node) in enumerate(path, 1):
        if isinstance(node, Approval) and node.of:
            call_at = in_same_rounds(node.of, at)
            asked |= {call_at} if call_at else set()
        if not isinstance(node, Call):
            continue
        if node.capability.effect == "irreversible":
            if node.approval is None and at not in asked:
                found.setdefault("no_gate", length)
            if has_pivot:
                found.setdefault("second_pivot", length)
            has_pivot = True
        elif node.capability.has_compensator and has_pivot:
            found.setdefault("undo_after_pivot", length)
    return found


def size(block: Block) -> int:
    """An upper bound of the paths that would be enumerated, orders included."""
    total = 1
    for node in block:
        inner = [size(b) for _, b in node.blocks()]
        match node:
            case Branch():
                total *= sum(inner)
            case Parallel(branches=branches):
                lengths = [length(b) for b in branches.values()]
                for one in inner:
                    total *= one
                total *= len(lengths) ** min(sum(lengths), 20)
            case Map(body=body):
                total *= 1 + inner[0] + inner[0] ** 2 * 2 ** (2 * min(length(body), 10))
            case Repeat():
                total *= inner[0] + inner[0] ** 2
            case Use():
                total *= inner[0]
            case _:
                pass
    return total


def length(block: Block) -> int:
    total = 0
    for node in block:
        inner = [length(b) for _, b in node.blocks()]
        total += 1 + (
            sum(inner)
            if isinstance(node, Parallel)
            else max(inner, default=0) * (2 if isinstance(node, (Map, Repeat)) else 1)
        )
    return total


def _shortest(found: Definition) -> tuple[dict[str, int], int]:
    least: dict[str, int] = {}
    count = 0
    for path in every_path(found.body, found.name):
        count += 1
        for kind, at in breaches(path).items():
            least[kind] = min(at, least.get(kind, at))
    return least, count


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(definitions())
def test_the_walk_finds_what_enumerating_every_path_finds_and_as_short(found: Definition):
    """R034, R035, R192"""
    assume(size(found.body) <= 2_000)
    least, count = _shortest(found)
    shown: dict[str, int] = {}
    for offence in Walk(found).offences:
        shown[offence.kind] = min(len(offence.path), shown.get(offence.kind, len(offence.path)))
    assert shown == least
    assert ways(found.body) <= count


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(definitions())
def test_every_path_that_is_shown_is_a_path_and_breaks_what_it_is_shown_for(found: Definition):
    assume(size(found.body) <= 1_000)
    paths = [tuple(at for at, _ in path) for path in every_path(found.body, found.name)]
    full = list(every_path(found.body, found.name))
    for offence in Walk(found).offences:
        begun = [path for names, path in zip(paths, full, strict=True) if names[: len(offence.path)] == offence.path]
        assert begun, offence
        assert any(breaches(path).get(offence.kind, 10**6) <= len(offence.path) for path in begun)


# The protocol of one call


def model(**fields: bool) -> CallModel:
    given: dict[str, bool] = {"has_gate": True, "has_key": True, "has_probe": True, "dedups": False, **fields}
    return CallModel(effect="irreversible", **given)


def test_no_crash_loss_rival_or_stale_approval_makes_a_call_twice_or_without_its_approval():
    """R054, B3, D3: every state of every kind of call."""
    for gate, key, probe, dedups in product((False, True), repeat=4):
        verdict = check_call(model(has_gate=gate, has_key=key, has_probe=probe, dedups=dedups))
        assert (verdict.broken, verdict.events) == ("", ())
        assert 50 < verdict.states < 1_000


@pytest.mark.parametrize(
    ("without", "broken", "length", "last"),
    [
        ("gate", "sent without its approval", 2, "the request goes out"),
        ("binding", "sent without its approval", 5, "the request goes out"),
        ("claim", "made twice", 6, "another run makes the same effect"),
        ("intent", "made twice", 6, "another run makes the same effect"),
        ("settle", "made twice", 10, "a request arrives, its reply is lost"),
        ("wait", "made twice", 10, "a request arrives, its reply is lost"),
    ],
)
def test_a_protocol_with_a_part_taken_away_is_caught_by_its_shortest_counter_example(
    without: Part, broken: str, length: int, last: str
):
    verdict = check_call(model(), frozenset({without}))
    assert (verdict.broken, len(verdict.events), verdict.events[-1]) == (broken, length, last)


def test_every_part_of_the_protocol_is_needed_by_some_call():
    for part in PARTS:
        assert any(
            check_call(model(has_probe=probe, dedups=dedups), frozenset({part})).broken
            for probe, dedups in product((False, True), repeat=2)
        ), part


def test_a_later_no_is_not_final_while_an_earlier_request_may_arrive():
    """B3: only the other side's memory of keys allows it to be sent again that early."""
    verdict = check_call(model(has_gate=False, dedups=True, has_probe=False), frozenset({"doubt"}))
    assert verdict.broken == "made and taken for declined"
    assert verdict.events[-2:] == ("a request is declined", "a request arrives, its reply is lost")


def test_the_protocol_is_checked_for_each_call_that_changes_something():
    found = definition(
        call("load"), call("pay", "keyed"), Approval(name="ask", terms=OPS, of="w/wire"), wire(approval=None)
    )
    verdicts = check_protocol(found)
    assert set(verdicts) == {"w/pay", "w/wire"}
    assert verdicts["w/wire"].states != verdicts["w/pay"].states
