"""What a consumer says in the end and in between.

PURE.  The first keys are those of Dynamo's shadow consumer, in its order; ours follow.
"""

from collections.abc import Sequence
from typing import Any

import attrs

from replay.consumer.ledger import PublisherLedger
from replay.consumer.status import Dropped
from replay.consumer.totals import Totals


@attrs.frozen
class Account:
    """A publisher's ledger and what cannot be read from it alone."""

    ledger: PublisherLedger
    tail_loss: int | None


def build_report(totals: Totals, accounts: Sequence[Account], *, foreign: int) -> dict[str, Any]:
    """Return the report as values for JSON.

    `null` stands for what cannot be known: without status records (Dynamo sends none) the drops of
    the taps, the loss after the last message and whether there is an end.
    """
    ledgers = [account.ledger for account in accounts]
    joined = [ledger for ledger in ledgers if ledger.joined_at is not None]
    return {
        "records": totals.records,
        "prompt_tokens": totals.prompt_tokens,
        "output_tokens": totals.output_tokens,
        "responses": totals.responses,
        **totals.outcomes,
        "tap_gaps": sum(ledger.tap.missing for ledger in ledgers),
        "transport_gaps": sum(ledger.transport.missing for ledger in ledgers),
        "arrival_span_ms": totals.arrival_span_ms,
        "tap_drops": _sum([_total(ledger.dropped) for ledger in joined]),
        "transport_loss": _sum([ledger.transport_loss for ledger in joined]),
        "tail_loss": _sum([each.tail_loss for each in accounts if each.ledger in joined]),
        "joined_at": {f"{ledger.publisher_id:x}": ledger.joined_at for ledger in joined},
        "epochs": len(joined),
        "duplicates": sum(ledger.duplicates for ledger in ledgers),
        "foreign": foreign,
        "undecodable": totals.undecodable,
        "unsupported": totals.unsupported,
        "recovered": sum(ledger.recovered for ledger in ledgers),
        "unrecovered": sum(ledger.unrecovered for ledger in ledgers),
        "end_seen": all(ledger.is_final for ledger in joined) if _has_status(joined) else None,
        "publishers": [_publisher(account) for account in accounts],
    }


def _publisher(account: Account) -> dict[str, Any]:
    ledger = account.ledger
    dropped, latest = ledger.dropped, ledger.latest
    return {
        "publisher_id": f"{ledger.publisher_id:x}",
        "tap": ledger.tap_name,
        "joined_at": ledger.joined_at,
        "messages": ledger.transport.count,
        "tap_gaps": ledger.tap.missing,
        "transport_gaps": ledger.transport.missing,
        "tap_drops": None if dropped is None else attrs.asdict(dropped),
        "transport_loss": ledger.transport_loss,
        "tail_loss": account.tail_loss,
        "duplicates": ledger.duplicates,
        "recovered": ledger.recovered,
        "unrecovered": ledger.unrecovered,
        "publish_errors": None if latest is None else latest.publish_errors,
        "lost_at_shutdown": None if latest is None else latest.lost_at_shutdown,
        "end_seen": None if latest is None else ledger.is_final,
    }


def _total(dropped: Dropped | None) -> int | None:
    return None if dropped is None else dropped.total


def _sum(values: Sequence[int | None]) -> int | None:
    """Return the sum, or None if a part of it, or all, is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _has_status(ledgers: Sequence[PublisherLedger]) -> bool:
    return any(ledger.latest is not None for ledger in ledgers)


def progress_line(before: dict[str, Any], now: dict[str, Any], seconds: float) -> str:
    """Return the line between two reports that are *seconds* apart."""
    requests = (now["records"] - before["records"]) / seconds
    tokens = (now["prompt_tokens"] - before["prompt_tokens"]) / seconds
    return (
        f"records={now['records']} prompt_tokens={now['prompt_tokens']}"
        f" output_tokens={now['output_tokens']} ({requests:.0f} req/s, {tokens:.0f} prompt tok/s)"
        f" tap_gaps={now['tap_gaps']} transport_gaps={now['transport_gaps']}"
    )
