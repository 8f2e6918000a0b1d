"""Truth and faults over HTTP; `openapi.yaml` beside this file says what each path does."""

from collections.abc import Callable, Mapping
from importlib.resources import files
from itertools import islice
from typing import Any, TypeVar

import attrs
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from replay.logger import get_logger
from replay.web.guarded_path import GuardedPath, Handler, RefusedError, read_whole
from replay.web.json_body import BodyError, read_body
from replay.web.json_list import json_list
from replay.worker.faults import Admission, Aim, Failing, KvEventLoss, Stalling
from replay.worker.fleet import Fleet, Member

log = get_logger(__name__)

#: What a list has at most, and when nobody says how much.
MOST_ENTRIES = 1000
USUAL_ENTRIES = 100

T = TypeVar("T")

#: What is known of a worker beside its engine, by its number.
Status = Callable[[int], Mapping[str, Any]]


def admin_routes(fleet: Fleet, status: Status, *, token: str | None) -> tuple[BaseRoute, ...]:
    """Return what is answered below `/admin`.

    *token* is what requests have to bear; None: nothing, but they have to come to a name of this
    machine and not from a page.
    """
    admin = _Admin(fleet, status)
    worker = "/admin/workers/{worker}"
    table: dict[str, dict[str, Handler]] = {
        "/admin/openapi.yaml": {"GET": admin.show_description},
        "/admin/requests": {"GET": admin.list_requests},
        "/admin/reset": {"POST": admin.reset_all},
        "/admin/workers": {"GET": admin.list_workers},
        worker: {"GET": admin.show_worker},
        f"{worker}/cache": {"GET": admin.show_cache},
        f"{worker}/passes": {"GET": admin.list_passes},
        f"{worker}/reset": {"POST": admin.reset},
        f"{worker}/pause": {"POST": admin.pause},
        f"{worker}/resume": {"POST": admin.resume},
        f"{worker}/kv-events/restart": {"POST": admin.restart_kv_events},
        f"{worker}/faults": {"GET": admin.show_faults, "DELETE": admin.clear_faults},
        f"{worker}/faults/fail": {"PUT": admin.set_failing, "DELETE": admin.clear_failing},
        f"{worker}/faults/stall": {"PUT": admin.set_stalling, "DELETE": admin.clear_stalling},
        f"{worker}/faults/admission": {
            "PUT": admin.set_admission,
            "DELETE": admin.clear_admission,
        },
        f"{worker}/faults/kv-events": {
            "PUT": admin.set_kv_events,
            "DELETE": admin.clear_kv_events,
        },
    }
    return tuple(Route(path, GuardedPath(handlers, token)) for path, handlers in table.items())


class _Admin:
    """The handlers."""

    def __init__(self, fleet: Fleet, status: Status) -> None:
        self._fleet = fleet
        self._status = status
        self._description = (files("replay.web") / "openapi.yaml").read_bytes()

    # ---- truth

    async def show_description(self, request: Request) -> Response:
        return Response(self._description, media_type="application/yaml")

    async def list_workers(self, request: Request) -> Response:
        return JSONResponse({"workers": [self._view(each) for each in self._fleet.members]})

    async def show_worker(self, request: Request) -> Response:
        return JSONResponse(self._view(self._member(request)))

    async def list_requests(self, request: Request) -> Response:
        found = self._fleet.records.find(
            worker=_number(request, "worker", None),
            request_id=request.query_params.get("request_id"),
            after=_number(request, "after", 0) or 0,
            limit=_limit(request),
        )
        return json_list("requests", found)

    async def list_passes(self, request: Request) -> Response:
        passes = self._member(request).passes
        after = _number(request, "after", 0) or 0
        found = islice((each for each in passes if each.number > after), _limit(request))
        return json_list("passes", list(found))

    async def show_cache(self, request: Request) -> Response:
        member = self._cached(request)
        assert member.simulator is not None
        head = {
            "block_size": member.simulator.block_size,
            "capacity": member.simulator.pool.capacity,
        }
        return json_list("blocks", member.cached_blocks(), head)

    async def show_faults(self, request: Request) -> Response:
        return JSONResponse(_faults_view(self._member(request)))

    # ---- faults

    async def set_failing(self, request: Request) -> Response:
        return await self._set(request, Failing, lambda to, fault: to.faults.set_failing(fault))

    async def clear_failing(self, request: Request) -> Response:
        return self._do(request, lambda member: member.faults.set_failing(None))

    async def set_stalling(self, request: Request) -> Response:
        return await self._set(request, Stalling, lambda to, fault: to.faults.set_stalling(fault))

    async def clear_stalling(self, request: Request) -> Response:
        return self._do(request, lambda member: member.faults.set_stalling(None))

    async def set_admission(self, request: Request) -> Response:
        return await self._set(request, Admission, lambda to, fault: to.faults.set_admission(fault))

    async def clear_admission(self, request: Request) -> Response:
        return self._do(request, lambda member: member.faults.set_admission(None))

    async def set_kv_events(self, request: Request) -> Response:
        self._cached(request)
        return await self._set(request, KvEventLoss, Member.set_kv_event_loss)

    async def clear_kv_events(self, request: Request) -> Response:
        self._cached(request)
        return self._do(request, lambda member: member.set_kv_event_loss(KvEventLoss()))

    async def clear_faults(self, request: Request) -> Response:
        return self._do(request, Member.clear_faults)

    async def restart_kv_events(self, request: Request) -> Response:
        self._cached(request)
        return self._do(request, Member.restart_kv_publisher)

    async def pause(self, request: Request) -> Response:
        return self._do(request, lambda member: member.faults.pause())

    async def resume(self, request: Request) -> Response:
        return self._do(request, lambda member: member.faults.resume())

    async def reset(self, request: Request) -> Response:
        return self._do(request, self._fleet.reset)

    async def reset_all(self, request: Request) -> Response:
        for member in self._fleet.members:
            self._fleet.reset(member)
        log.info("admin", path=request.url.path, method=request.method)
        return Response(status_code=204)

    # ---- inside

    async def _set(
        self, request: Request, cls: type[T], apply: Callable[[Member, T], None]
    ) -> Response:
        member = self._member(request)
        try:
            fault = read_body(await read_whole(request), cls)
        except BodyError as error:
            raise RefusedError(error.status, *error.problems) from None
        apply(member, fault)
        log.info("admin", path=request.url.path, method=request.method)
        return JSONResponse(_faults_view(member))

    def _do(self, request: Request, action: Callable[[Member], None]) -> Response:
        action(self._member(request))
        log.info("admin", path=request.url.path, method=request.method)
        return Response(status_code=204)

    def _member(self, request: Request) -> Member:
        text, members = request.path_params["worker"], self._fleet.members
        for member in members:
            if str(member.number) == text:
                return member
        there = f"there are 0 to {len(members) - 1}" if members else "there is none"
        raise RefusedError(404, f"there is no such worker; {there}")

    def _cached(self, request: Request) -> Member:
        member = self._member(request)
        if not member.has_cache:
            raise RefusedError(409, "the worker has no prefix cache, and so no KV events")
        return member

    def _view(self, member: Member) -> dict[str, Any]:
        view = {
            "worker": member.number,
            "engine": member.kind,
            "model": member.answering.model.name,
            **self._status(member.number),
            "is_paused": member.faults.rules.is_paused,
            "loads": attrs.asdict(member.answering.loads()),
            "cache": None,
            "kv_events": None,
        }
        if member.has_cache and (simulator := member.simulator) is not None:
            pool, events = simulator.pool, simulator.kv_events
            view["cache"] = {
                "block_size": simulator.block_size,
                "capacity": pool.capacity,
                "free": pool.free,
                "active": pool.active,
                "cached": pool.cached,
            }
            view["kv_events"] = {
                "first": events.first,
                "last": events.last,
                "restarts": events.generation,
            }
        return view


def _faults_view(member: Member) -> dict[str, Any]:
    rules = member.faults.rules
    return {
        "is_paused": rules.is_paused,
        "fail": _aim_view(rules.failing),
        "stall": _aim_view(rules.stalling),
        "admission": rules.admission and attrs.asdict(rules.admission),
        "kv_events": attrs.asdict(member.kv_event_loss()) if member.has_cache else None,
    }


def _aim_view(aim: Aim[Any] | None) -> dict[str, Any] | None:
    if aim is None:
        return None
    return {**attrs.asdict(aim.fault), "requests_left": aim.requests_left(trio.current_time())}


def _number(request: Request, name: str, default: int | None) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise RefusedError(422, f"{name}: must be an integer from 0")
    return int(text)


def _limit(request: Request) -> int:
    limit = _number(request, "limit", USUAL_ENTRIES)
    if limit is None or not 1 <= limit <= MOST_ENTRIES:
        raise RefusedError(422, f"limit: must be from 1 to {MOST_ENTRIES}")
    return limit
