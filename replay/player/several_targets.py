"""Several targets as one: requests take turns among them, the turns of a session stay where its
first went.

A target that fails stays in turn: the player measures what its clients would have met, it heals
nothing.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import trio

from replay.player.answer_log import AnswerLog
from replay.player.outgoing import Outgoing
from replay.player.targets import Clock, Packed, Target, TargetError, TargetModel


@asynccontextmanager
async def open_several_targets(
    targets: Mapping[str, AbstractAsyncContextManager[Target]],
) -> AsyncIterator["SeveralTargets"]:
    """Open *targets*, by the names under which results speak of them.

    Raises TargetError for an address that is none, and for targets that take different prompts.
    """
    async with AsyncExitStack() as opened:
        named = {name: await opened.enter_async_context(each) for name, each in targets.items()}
        if len({target.speaks for target in named.values()}) > 1:
            raise TargetError(f"{', '.join(named)}: all targets have to be of one kind")
        yield SeveralTargets(named)


class SeveralTargets:
    """Targets that share the requests of one run."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets
        self._names = [*targets]
        self._next = 0
        self._homes: dict[str, str] = {}
        self.models: dict[str, TargetModel] = {}
        """What each says of its model, once it was asked."""
        self.speaks = next(iter(targets.values())).speaks

    async def describe(self) -> TargetModel:
        """Ask all of them.  Prompts that are made up are of the smallest vocabulary.

        Raises a TargetError that names each one that cannot be used.
        """
        faults: list[str] = []

        async def ask(name: str, target: Target) -> None:
            try:
                self.models[name] = await target.describe()
            except TargetError as error:
                faults.append(str(error))

        async with trio.open_nursery() as asking:
            for name, target in self._targets.items():
                asking.start_soon(partial(ask, name, target))
        if faults:
            raise TargetError("; ".join(sorted(faults)))
        models = [self.models[name] for name in self._names]
        lengths = [each.context_length for each in models if each.context_length is not None]
        return TargetModel(
            name=", ".join(dict.fromkeys(each.name for each in models)),
            vocab_size=min(each.vocab_size for each in models),
            context_length=min(lengths, default=None),
        )

    def pack(self, outgoing: Outgoing) -> Packed:
        """Prepare a request for the target whose turn it is."""
        name = self._choose(outgoing.session)
        return _PackedFor(name, self._targets[name].pack(outgoing))

    def _choose(self, session: str | None) -> str:
        if session is not None and session in self._homes:
            return self._homes[session]
        name = self._names[self._next % len(self._names)]
        self._next += 1
        if session is not None:
            self._homes[session] = name
        return name


@attrs.frozen
class _PackedFor:
    """A request that is ready for one of the targets."""

    name: str
    packed: Packed

    async def send(self, log: AnswerLog, clock: Clock) -> None:
        """Send it, and note where to.  Raises SendError."""
        log.target = self.name
        await self.packed.send(log, clock)
