"""Targets that share the requests of one run."""

from contextlib import nullcontext
from typing import Any

import attrs
import pytest
import trio
from targets import FakeTarget
from trio.testing import MockClock

from replay.player.arrival import Arrival, TokenPrompt, token_ids
from replay.player.feed import ReadAhead
from replay.player.observation import Observation, Outcome
from replay.player.outgoing import Speaks
from replay.player.play import Player, PlaySettings
from replay.player.schedule import original
from replay.player.several_targets import SeveralTargets, open_several_targets
from replay.player.targets import Target, TargetError, TargetModel

SECOND = 1_000_000_000
LARGE = TargetModel(name="m", vocab_size=500, context_length=64)


@attrs.define
class AbsentTarget(FakeTarget):
    """Nobody is there."""

    name: str = "x"

    async def describe(self) -> TargetModel:
        await trio.lowlevel.checkpoint()
        raise TargetError(f"{self.name}: UNAVAILABLE")


@attrs.define
class ModelTarget(FakeTarget):
    """Says what model it has."""

    model: TargetModel = LARGE

    async def describe(self) -> TargetModel:
        await trio.lowlevel.checkpoint()
        return self.model


def arrival(number: int, **values: Any) -> Arrival:
    return Arrival(
        position=number,
        request_id=f"r{number}",
        prompt=TokenPrompt(token_ids([1, 2])),
        stream=True,
        **{"offset_ns": number * SECOND} | values,
    )


async def play(target: Target, rows: list[Arrival]) -> list[Observation]:
    results: list[Observation] = []
    player = Player(
        target,
        ReadAhead(original(rows)),
        vocab_size=500,
        settings=PlaySettings(),
        on_result=results.append,
    )
    await player.run(stop=trio.Event(), quit_now=trio.Event())
    return sorted(results, key=lambda each: each.position)


async def test_requests_take_turns_and_results_name_their_target(autojump_clock: MockClock) -> None:
    targets: dict[str, Target] = {"a": FakeTarget(), "b": FakeTarget(), "c": FakeTarget()}
    results = await play(SeveralTargets(targets), [arrival(number) for number in range(7)])
    assert [each.target for each in results] == ["a", "b", "c", "a", "b", "c", "a"]


async def test_the_turns_of_a_session_stay_where_its_first_went(autojump_clock: MockClock) -> None:
    targets: dict[str, Target] = {"a": FakeTarget(), "b": FakeTarget()}
    later = {"offset_ns": None, "think_ns": SECOND, "turn": 1}
    rows = [arrival(0, session="s"), arrival(1), arrival(2), arrival(3, session="s", **later)]
    rows += [arrival(4), arrival(5, session="t"), arrival(6, session="t", **later)]
    results = await play(SeveralTargets(targets), rows)
    homes = {each.request_id: each.target for each in results}
    assert homes["r0"] == homes["r3"] == "a"
    assert homes["r5"] == homes["r6"]
    assert [homes[name] for name in ("r1", "r2", "r4")] == ["b", "a", "b"]


async def test_a_target_that_fails_stays_in_turn(autojump_clock: MockClock) -> None:
    targets: dict[str, Target] = {"a": FakeTarget(), "b": FakeTarget(failing=lambda _: True)}
    results = await play(SeveralTargets(targets), [arrival(number) for number in range(6)])
    assert [each.outcome for each in results] == [Outcome.COMPLETE, Outcome.ERROR] * 3


async def test_all_are_asked_for_their_model_and_prompts_fit_each() -> None:
    small = TargetModel(name="n", vocab_size=400, context_length=None)
    targets: dict[str, Target] = {"a": ModelTarget(), "b": ModelTarget(model=small)}
    several = SeveralTargets(targets)
    model = await several.describe()
    assert model == TargetModel(name="m, n", vocab_size=400, context_length=64)
    assert {name: each.name for name, each in several.models.items()} == {"a": "m", "b": "n"}


async def test_each_target_that_cannot_be_used_is_named() -> None:
    targets: dict[str, Target] = {
        "a": AbsentTarget(name="a"),
        "b": ModelTarget(),
        "c": AbsentTarget(name="c"),
    }
    with pytest.raises(TargetError, match="a: UNAVAILABLE; c: UNAVAILABLE"):
        await SeveralTargets(targets).describe()


async def test_targets_of_two_kinds_are_refused() -> None:
    targets: dict[str, Target] = {"a": FakeTarget(), "b": FakeTarget(speaks=Speaks.IDS_AND_TEXT)}
    with pytest.raises(TargetError, match="a, b: all targets have to be of one kind"):
        async with open_several_targets(
            {name: nullcontext(each) for name, each in targets.items()}
        ):
            pass
