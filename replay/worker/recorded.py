"""A layer over one worker's engine that writes down what becomes of each request."""

import time
from collections import Counter
from collections.abc import Sequence

import trio
from purerpc.grpclib.exceptions import RpcFailedError

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Answer, Engine, Generation
from replay.engines.engine_layer import EngineLayer
from replay.worker.answer_layer import AnswerLayer
from replay.worker.cache_oracle import CacheOracle
from replay.worker.request_records import RequestRecord, RequestRecords


class RecordedEngine(EngineLayer):
    """Answers as the engine *below* does, and keeps a record of each request of *worker*."""

    def __init__(
        self, below: Engine, worker: int, *, records: RequestRecords, oracle: CacheOracle
    ) -> None:
        super().__init__(below)
        self._worker = worker
        self._records = records
        self._oracle = oracle

    async def generate(self, generation: Generation, answer: Answer) -> None:
        """Answer one request; raises what the engine below raises."""
        age_ns = int((trio.current_time() - generation.arrival) * 1e9)
        record = self._records.begin(
            self._worker,
            generation.request_id,
            arrival_unix_ns=time.time_ns() - age_ns,
            stream=generation.message.stream,
            choices=generation.choices,
            prompt_tokens=generation.prompt_tokens,
        )
        outcome = "INTERNAL"
        try:
            record.cached_at_arrival = await self._oracle.look_up(generation, self._worker)
            watched = _WatchedAnswer(answer, record, generation.arrival)
            await self.below.generate(generation, watched)
            # An engine that aborts by itself ends well, and so does a script that says so.
            outcome = "CANCELLED" if "abort" in record.finish_reasons else "OK"
        except RpcFailedError as error:
            outcome = error.status.status_code.name
            raise
        except Exception:
            raise
        except BaseException:  # a cancellation, which an engine's nursery gives in a group
            outcome = "CANCELLED"
            raise
        finally:
            record.outcome = outcome
            record.duration_ms = _ms_since(generation.arrival)


class _WatchedAnswer(AnswerLayer):
    """Writes into *record* what passes."""

    def __init__(self, answer: Answer, record: RequestRecord, arrival: float) -> None:
        super().__init__(answer)
        self._record = record
        self._arrival = arrival
        self._passed: Counter[int] = Counter()
        """Tokens of each choice."""

    def set_cached_tokens(self, count: int) -> None:
        self._record.cached_tokens = count
        super().set_cached_tokens(count)

    def tokens(self, ids: Sequence[int], index: int = 0) -> None:
        self._note_tokens(len(ids), index)
        self._below.tokens(ids, index)  # straight on: this is done for every token

    def finish(
        self,
        reason: str,
        index: int = 0,
        *,
        matched: int | str | None = None,
        spec_accepted: int = 0,
        spec_draft: int = 0,
    ) -> None:
        self._record.finish_reasons.append(reason)
        super().finish(
            reason, index, matched=matched, spec_accepted=spec_accepted, spec_draft=spec_draft
        )

    def fail(self, message: str, index: int = 0) -> None:
        self._record.finish_reasons.append("error")
        super().fail(message, index)

    def whole(self, ids: Sequence[int], reason: str, *, matched: int | None = None) -> None:
        self._note_tokens(len(ids), 0)
        self._record.finish_reasons.append(reason)
        super().whole(ids, reason, matched=matched)

    def forward(self, response: pb.GenerateResponse, packed: bytes | None = None) -> None:
        if response.WhichOneof("response") == "chunk":
            self._note_tokens(len(response.chunk.token_ids), response.chunk.index)
        else:
            complete = response.complete
            # It repeats what has passed before.
            more = len(complete.output_ids) - self._passed[complete.index]
            self._note_tokens(max(0, more), complete.index)
            self._record.cached_tokens = complete.cached_tokens
            self._record.finish_reasons.append(complete.finish_reason)
        super().forward(response, packed)

    def _note_tokens(self, count: int, index: int) -> None:
        if not count:
            return
        self._passed[index] += count
        record = self._record
        record.last_token_ms = _ms_since(self._arrival)
        if record.first_token_ms is None:
            record.first_token_ms = record.last_token_ms
        record.output_tokens += count


def _ms_since(moment: float) -> float:
    return (trio.current_time() - moment) * 1000
