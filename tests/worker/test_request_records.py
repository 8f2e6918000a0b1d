from replay.worker.request_records import LONGEST_ID, RequestRecord, RequestRecords


def begin(records: RequestRecords, worker: int = 0, request_id: str = "r") -> RequestRecord:
    return records.begin(
        worker, request_id, arrival_unix_ns=1, stream=True, choices=1, prompt_tokens=3
    )


def numbers(records: RequestRecords, **wanted: int | str) -> list[int]:
    return [each.number for each in records.find(**wanted)]


def test_only_the_last_requests_are_kept_and_their_numbers_go_on() -> None:
    records = RequestRecords(3)
    for _ in range(5):
        begin(records)
    assert (numbers(records), len(records)) == ([3, 4, 5], 3)


def test_records_are_found_by_worker_id_and_number() -> None:
    records = RequestRecords(9)
    for worker, request_id in ((0, "a"), (1, "a"), (0, "b"), (0, "a")):
        begin(records, worker, request_id)
    assert numbers(records, worker=0) == [1, 3, 4]
    assert numbers(records, request_id="a") == [1, 2, 4]
    assert numbers(records, worker=0, request_id="a", after=1) == [4]
    assert numbers(records, limit=2) == [1, 2]
    assert numbers(records, worker=7) == []


def test_a_record_says_what_has_become_of_its_request() -> None:
    records = RequestRecords(9)
    begin(records).outcome = "OK"
    assert [each.outcome for each in records.find()] == ["OK"]


def test_the_records_of_one_worker_can_be_forgotten() -> None:
    records = RequestRecords(3)
    for worker in (0, 1, 0):
        begin(records, worker)
    records.forget(0)
    assert numbers(records) == [2]
    for _ in range(3):
        begin(records)
    assert numbers(records) == [4, 5, 6]
    records.forget()
    assert numbers(records) == []


def test_of_an_endless_id_the_beginning_is_kept_and_found() -> None:
    records = RequestRecords(9)
    record = begin(records, request_id="a" * 10**6)
    assert len(record.request_id) == LONGEST_ID
    assert numbers(records, request_id="a" * 10**6) == [1]
