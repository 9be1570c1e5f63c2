"""One object that holds what an application declares: workflows, fragments, agents, and who may approve.

Nothing here has a side effect, and nothing is global: two applications in one process know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from setpoint.adapters.approvers.roster import Approver, refuse_shared
from setpoint.app.capability import NAME, Capability
from setpoint.app.declaring import declaration
from setpoint.app.typed import DefinitionFault
from setpoint.app.workflow import Fragment, Workflow
from setpoint.engine.runs.program import ChildCode, Program

if TYPE_CHECKING:
    from setpoint.app.agent import Agent, AgentBudget, Models, OfSession
    from setpoint.app.session import Hydrator

InputT = TypeVar("InputT")
StateT = TypeVar("StateT")


class App:
    """What an application declares. ``check`` proves it before anything runs; ``Runtime.open(store, app)`` does so.

    ``services()`` gives an async context manager over what capabilities find in ``ctx.services``: it is entered where
    runs are worked on (``setpoint run``, ``worker``, ``async with Runtime.open(...)``), and left when that ends.
    ``judges`` are the models of its judge nodes (routes, or proposers; the first one answers), unless the runtime is
    opened with others.
    """

    @declaration
    def __init__(
        self,
        name: str,
        *,
        services: Callable[[], AbstractAsyncContextManager[Mapping[str, Any]]] | None = None,
        judges: Models = (),
    ) -> None:
        if not NAME.fullmatch(name):
            raise DefinitionFault(f"{name!r} is no name for an app: letters, digits, - _ . and at most 64 of them")
        self.name = name
        if isinstance(judges, str):
            raise DefinitionFault(f"judges={judges!r} of {name} is one text; judges= is a list of routes")
        self.services = services
        self.judges = tuple(judges)
        self._workflows: dict[tuple[str, int], Workflow[Any, Any]] = {}
        self._fragments: dict[str, Fragment[Any]] = {}
        self._agents: dict[str, Agent] = {}
        self._hydrators: dict[str, Hydrator] = {}
        self._approvers: list[Approver] = []

    # Declaring

    @declaration
    def workflow(
        self,
        name: str,
        *,
        input: type[InputT],
        state: type[StateT],
        version: int = 1,
        boundary: Sequence[Capability] | None = None,
        initial: Callable[[InputT], StateT] | None = None,
        output: Callable[..., Any] | None = None,
        on_bug: Literal["pause", "fail"] = "pause",
    ) -> Workflow[InputT, StateT]:
        """A new workflow, to be built by chaining. Older versions stay declared as long as runs are pinned to them.

        ``boundary`` lists the capabilities it may call (default: those it does call). The first state has the input's
        fields, unless ``initial`` makes it. ``output`` of the last state is the result (default: the state). A step
        that raises pauses the run for a person (``on_bug="fail"``: takes it back and ends it).
        """
        if (name, version) in self._workflows:
            raise DefinitionFault(
                f"{self.name} has a workflow {name!r} of version {version} already",
                hint="Give the new one another name, or version= one more.",
            )
        self._refuse_taken(name, "workflow")
        made = Workflow(
            name,
            input=input,
            state=state,
            version=version,
            boundary=boundary,
            initial=initial,
            output=output,
            on_bug=on_bug,
        )
        self._workflows[name, version] = made
        return made

    @declaration
    def fragment(self, name: str, *, state: type[StateT]) -> Fragment[StateT]:
        """A part to be used in several places, of workflows whose state has at least its fields."""
        self._refuse_taken(name, "fragment")
        made = Fragment(name, state)
        self._fragments[name] = made
        return made

    @declaration
    def agent(
        self,
        name: str,
        *,
        instructions: str,
        workflows: Sequence[Workflow[Any, Any]],
        context: OfSession | None = None,
        signals: Sequence[str] = (),
        fill: Mapping[str, OfSession] | None = None,
        scopes: Mapping[str, Sequence[str]] | None = None,
        budget: AgentBudget | Mapping[str, Any] | None = None,
        models: Models = (),
        may_ask: bool = True,
        recall: int = 1,
    ) -> Agent:
        """An agent: instructions, the workflows it may start, and what of the session it is told.

        ``context`` of the session is all its model sees of it. ``signals`` the principal may send through it to runs
        that wait for them. ``fill`` gives, by workflow, fields of the input that come from the session and that the
        model neither sees nor says. ``scopes`` a principal must hold, by workflow or signal. ``budget``: ``turns`` and
        ``starts`` for a message, ``tokens`` and ``usd`` for a session. ``models`` are routes or proposers, unless the
        runtime is opened with others. ``may_ask``: it may ask the operator. ``recall``: past exchanges it is shown.
        """
        from setpoint.app.agent import declare

        self._refuse_taken(name, "agent")
        made = declare(
            self,
            name,
            instructions=instructions,
            workflows=workflows,
            context=context,
            signals=signals,
            fill=fill,
            scopes=scopes,
            budget=budget,
            models=models,
            may_ask=may_ask,
            recall=recall,
        )
        self._agents[name] = made
        return made

    def hydrator(self, name: str | None = None, load: Any = None, *, fresh: str = "5m") -> Any:
        """How a value of every session's context is loaded: ``(ctx: Hydrating) -> type``; anew when it is older than
        ``fresh``. ``hydrator(name, load)``, or ``@app.hydrator(fresh=...)`` over a function of that name.
        """
        from setpoint.app.session import Hydrator

        def declare(function: Any) -> Any:
            made = Hydrator.of(name or function.__name__, function, fresh)
            if made.name in self._hydrators:
                raise DefinitionFault(f"{self.name} has a hydrator named {made.name!r} already")
            self._hydrators[made.name] = made
            return function

        return declare if load is None else declare(load)

    @declaration
    def approver(self, name: str, *, roles: Iterable[str], key: str) -> None:
        """Trust this key (a line of a .pub file) to decide for these roles, beside those of approvers.yaml."""
        try:
            approver = Approver(name, tuple(roles), key)
            refuse_shared([*self._approvers, approver])
        except ValueError as fault:
            raise DefinitionFault(str(fault)) from fault
        self._approvers.append(approver)

    def _refuse_taken(self, name: str, kind: str) -> None:
        kinds: Mapping[str, Any] = {
            "workflow": {known for known, _ in self._workflows},
            "fragment": self._fragments,
            "agent": self._agents,
        }
        for other, names in kinds.items():
            if name in names and not (kind == other == "workflow"):
                raise DefinitionFault(f"{self.name} has {_a(other)} named {name!r} already; names are unique")

    # Looking

    @property
    def approvers(self) -> tuple[Approver, ...]:
        return tuple(self._approvers)

    @property
    def workflows(self) -> tuple[Workflow[Any, Any], ...]:
        return tuple(self._workflows.values())

    @property
    def fragments(self) -> tuple[Fragment[Any], ...]:
        return tuple(self._fragments.values())

    @property
    def agents(self) -> tuple[Agent, ...]:
        return tuple(self._agents.values())

    @property
    def hydrators(self) -> Mapping[str, Hydrator]:
        return self._hydrators

    def newest(self, name: str) -> Workflow[Any, Any]:
        """The newest version of a workflow. DefinitionFault names those there are."""
        versions = [version for known, version in self._workflows if known == name]
        if not versions:
            known = ", ".join(sorted({known for known, _ in self._workflows})) or "none"
            raise DefinitionFault(f"{self.name} declares no workflow {name!r}; it declares {known}")
        return self._workflows[name, max(versions)]

    def programs(self) -> dict[str, Program]:
        """Every version of every workflow, and those they start, by definition digest."""
        found: dict[str, Program] = {}
        left = [workflow.program for workflow in self._workflows.values()]
        while left:
            program = left.pop(0)
            if found.setdefault(program.definition.digest, program) is program:
                left += [code.program for code in program.code.values() if isinstance(code, ChildCode)]
        return found

    def check(self) -> dict[str, Program]:
        """Prove every workflow. DefinitionFault names the first path that breaks an obligation."""
        from setpoint.kernel.obligations import broken_obligations

        programs = self.programs()
        _refuse_namesakes(programs.values())
        for program in programs.values():
            for broken in broken_obligations(program.definition):
                raise DefinitionFault(broken.message, hint=broken.hint)
        return programs


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _refuse_namesakes(programs: Iterable[Program]) -> None:
    """Two capabilities of one name would share keys and claims without being the same."""
    seen: dict[str, Any] = {}
    for program in programs:
        for name, effector in program.effectors.items():
            if seen.setdefault(name, effector) is not effector:
                raise DefinitionFault(f"two capabilities of the app are named {name!r}; names are unique")
