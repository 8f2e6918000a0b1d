"""An engine over an engine: what a layer between a worker and its engine passes on."""

from collections.abc import Mapping
from typing import Any

import trio

from replay._proto import tokenspeed_scheduler_pb2 as pb
from replay.engines.base import Answer, Engine, Generation, Loads, Model


class EngineLayer:
    """Passes everything on to the engine *below*; implements `replay.engines.base.Engine`."""

    def __init__(self, below: Engine) -> None:
        self.below = below

    @property
    def model(self) -> Model:
        """What is served."""
        return self.below.model

    @property
    def sends_headers(self) -> bool:
        """Whether `generate` sends the initial headers."""
        return self.below.sends_headers

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled."""
        await self.below.run(task_status=task_status)

    def check(self, request: pb.GenerateRequest) -> str | None:
        """Return what is wrong with *request*, or None."""
        return self.below.check(request)

    async def generate(self, generation: Generation, answer: Answer) -> None:
        """Answer one request."""
        await self.below.generate(generation, answer)

    def loads(self) -> Loads:
        """Return what is held now."""
        return self.below.loads()

    def methods(self) -> Mapping[str, Any]:
        """Return the service's methods that are answered below."""
        return self.below.methods()
