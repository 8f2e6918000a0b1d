"""Faults that come and go while requests do: afterwards nothing is held, and all is told."""

import random
from collections.abc import Callable

import pytest
import trio
from purerpc.grpclib.exceptions import RpcFailedError
from trio.testing import MockClock

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.config.engines import RealisticConfig
from replay.engines.base import Generation, Model
from replay.engines.realistic import RealisticEngine
from replay.engines.script import ScriptEngine
from replay.engines.script_book import ScriptBook
from replay.engines.script_file import read_script
from replay.worker.faults import Admission, Failing, KvEventLoss, Stalling
from replay.worker.fleet import Fleet, Member
from tests.engines.fake_answer import FakeAnswer
from tests.engines.requests import generation

SCRIPT = [b'{"request_id": "s", "chunks": [[5, 6], [7]], "offsets_ms": [0, 30]}']


class AnyAnswer(FakeAnswer):
    """Takes what is forwarded, too."""

    def forward(self, response: pb.GenerateResponse, packed: bytes | None = None) -> None:
        if response.HasField("chunk"):
            self.tokens(response.chunk.token_ids, response.chunk.index)
        else:
            self.finish(response.complete.finish_reason, response.complete.index)


def request(chance: random.Random) -> Generation:
    """Return a request: short or long, one choice or several, scripted or not."""
    first = chance.randrange(100)
    return generation(
        range(first, first + chance.randrange(1, 500)),
        request_id=chance.choice(["r", "s"]),
        stream=chance.random() < 0.7,
        n=chance.choice([1, 1, 3]),
        max_new_tokens=chance.randrange(100),
    )


def fault(chance: random.Random, fleet: Fleet, member: Member) -> Callable[[], None]:
    """Return something to do to a worker."""
    faults, after = member.faults, chance.choice([0, 1, 5, 50])
    return chance.choice(
        [
            lambda: faults.set_failing(Failing(code="ABORTED", after_tokens=after, requests=2)),
            lambda: faults.set_stalling(Stalling(after_tokens=after, seconds=0.5)),
            lambda: faults.set_stalling(None),
            lambda: faults.set_admission(Admission(delay_ms=50.0 * after)),
            lambda: faults.set_admission(Admission(per_second=1.0 + 20 * after)),
            lambda: member.set_kv_event_loss(KvEventLoss(drop_batches=2, delay_ms=3.0 * after)),
            member.restart_kv_publisher,
            faults.pause,
            faults.resume,
            member.clear_faults,
            lambda: fleet.reset(member),
        ]
    )


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_left_of_faults_that_came_and_went(
    autojump_clock: MockClock, seed: int
) -> None:
    chance = random.Random(seed)
    simulators = [RealisticEngine(Model(), RealisticConfig(kv_blocks=100)) for _ in range(2)]
    book = ScriptBook(read_script(SCRIPT).choices)
    ended: list[str] = []

    async def one(member: Member, start: float, wanted: Generation, patience: float) -> None:
        await trio.sleep(start)
        wanted.arrival = trio.current_time()
        answer = AnyAnswer(wanted.choices)
        try:
            with trio.move_on_after(patience):
                await member.answering.generate(wanted, answer)
                assert not answer.is_open, "all choices have ended"
                ended.append("OK")
        except RpcFailedError as error:
            ended.append(error.status.status_code.name)

    async with trio.open_nursery() as engines:
        for each in simulators:
            await engines.start(each.run)
        fleet = Fleet([ScriptEngine(each, book) for each in simulators])
        async with trio.open_nursery() as requests:
            for _ in range(60):
                wanted, patience = request(chance), chance.choice([0.1, 1e6])
                start = 3 * chance.random()
                requests.start_soon(one, chance.choice(fleet.members), start, wanted, patience)
            for _ in range(40):
                await trio.sleep(chance.random() / 8)
                fault(chance, fleet, chance.choice(fleet.members))()
            for member in fleet.members:
                member.clear_faults()
        for member, simulator in zip(fleet.members, simulators, strict=True):
            loads = member.answering.loads()
            assert (loads.running, loads.waiting, loads.used_tokens) == (0, 0, 0)
            assert simulator.pool.active == 0
            assert set(simulator.kv_events.content()) == set(simulator.pool)
        engines.cancel_scope.cancel()
    assert None not in [each.outcome for each in fleet.records.find()]
    assert "OK" in ended, "otherwise this says nothing"
