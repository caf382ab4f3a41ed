"""``/v1/responses`` over HTTP: made, streamed, stored, read again, deleted; each tenant for itself."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from stepwell.tests.transports.house import client, error_of, idle, make_service
from stepwell.tests.transports.responding import TENANT, URL, create, framed, house, said, text_of
from stepwell.transports.responses import archive


def test_whole_streamed_and_read_again_say_the_same() -> None:
    with client(house()) as http:
        whole = http.post(URL, json=create("grüße", metadata={"a": "b"}, temperature=0.5, instructions="be brief"))
        assert whole.status_code == 200
        told = whole.json()
        assert (told["object"], told["status"], text_of(told)) == ("response", "completed", "grüße")
        assert told["usage"]["output_tokens"] == 7
        assert told["metadata"] == {"a": "b"}
        assert (told["temperature"], told["instructions"], told["store"]) == (0.5, "be brief", True)
        streamed = http.post(URL, json=create("grüße", stream=True))
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.headers["x-stepwell-request"] == "2"
        events = framed(streamed.text)
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        assert said(events) == "grüße"
        assert events[-1]["type"] == "response.completed"
        again = http.get(f"{URL}/{told['id']}").json()
        assert again == told
        for number in range(len(events)):
            resumed = http.get(f"{URL}/{events[0]['response']['id']}?stream=true&starting_after={number}")
            assert framed(resumed.text) == events[number + 1 :]
        assert framed(http.get(f"{URL}/{events[0]['response']['id']}?stream=true").text) == events


def test_what_is_not_stored_is_not_found_and_what_is_deleted_neither() -> None:
    with client(house()) as http:
        id = http.post(URL, json=create(store=False)).json()["id"]
        assert error_of(http.get(f"{URL}/{id}")) == (404, "response_not_found", "id")
        id = http.post(URL, json=create()).json()["id"]
        assert http.delete(f"{URL}/{id}").json() == {"id": id, "object": "response", "deleted": True}
        for refused in (
            http.get(f"{URL}/{id}"),
            http.delete(f"{URL}/{id}"),
            http.post(f"{URL}/{id}/cancel"),
            http.get(f"{URL}/{id}/input_items"),
        ):
            assert error_of(refused) == (404, "response_not_found", "id")


def test_a_conversation_goes_on_from_the_response_before() -> None:
    def template(messages: Any, arguments: Any) -> list[int]:
        return list("|".join(f"{each['role'][0]}:{each['content']}" for each in messages).encode())

    service = make_service(template=template, memory={"pages": 4000})
    with client(service) as http:
        first = http.post(URL, json=create("one", instructions="brief", max_output_tokens=3)).json()
        assert text_of(first) == "s:b"
        second = http.post(URL, json=create("two", previous_response_id=first["id"])).json()
        assert text_of(second) == "u:one|a:s:b|u:two"
        assert second["previous_response_id"] == first["id"]
        third = http.post(URL, json=create([{"role": "user", "content": "x"}], previous_response_id=second["id"]))
        assert text_of(third.json()) == "u:one|a:s:b|u:two|a:u:one|a:s:b|u:two|u:x"
        items = http.get(f"{URL}/{second['id']}/input_items?order=asc").json()
        texts = [(each["role"], each["content"][0]["text"]) for each in items["data"]]
        assert texts == [("user", "one"), ("assistant", "s:b"), ("user", "two")]
        page = http.get(f"{URL}/{second['id']}/input_items?limit=2").json()
        assert [each["content"][0]["text"] for each in page["data"]] == ["two", "s:b"]
        assert page["has_more"]
        page = http.get(f"{URL}/{second['id']}/input_items?limit=2&after={page['last_id']}").json()
        assert ([each["content"][0]["text"] for each in page["data"]], page["has_more"]) == (["one"], False)
        http.delete(f"{URL}/{first['id']}")
        refused = http.post(URL, json=create("two", previous_response_id=second["id"]))
        assert error_of(refused) == (400, "previous_response_not_found", "previous_response_id")


def test_items_of_every_kind_make_a_chat() -> None:
    seen: list[Any] = []

    def template(messages: Any, arguments: Any) -> list[int]:
        seen.append(messages)
        return [1, 2]

    items = [
        {"role": "developer", "content": "be exact"},
        {"role": "user", "content": [{"type": "input_text", "text": "weather in "}, {"type": "text", "text": "Rome?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "look"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call", "call_id": "c2", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
    ]
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
        {"id": "c2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]
    with client(make_service(template=template)) as http:
        answer = http.post(URL, json=create(items))
        assert answer.status_code == 200, answer.text
        assert seen[0] == [
            {"role": "system", "content": "be exact"},
            {"role": "user", "content": "weather in Rome?"},
            {"role": "assistant", "content": "Let me see.", "reasoning_content": "look", "tool_calls": calls},
            {"role": "tool", "content": "sunny", "tool_call_id": "c1", "name": "weather"},
            {"role": "tool", "content": "noon", "tool_call_id": "c2", "name": "time"},
        ]
        stored = http.get(f"{URL}/{answer.json()['id']}/input_items?order=asc&limit=100").json()["data"]
        kinds = [each["type"] for each in stored]
        assert kinds == ["message", "message", "reasoning", "message", *["function_call"] * 2, *kinds[-2:]]
        assert len({each["id"] for each in stored}) == 8


MISTAKES: list[tuple[dict[str, Any], int, str, str | None]] = [
    (create(""), 400, "invalid_value", "input"),
    (create(temperature=9), 400, "invalid_value", "temperature"),
    (create(model="gpt"), 404, "model_not_found", "model"),
    (create(background=True, store=False), 400, "invalid_value", "background"),
    (create(previous_response_id="resp_1"), 400, "previous_response_not_found", "previous_response_id"),
    (create("x" * 50_000), 400, "context_length_exceeded", "input"),
    (create(conversation="conv_1"), 400, "unsupported_parameter", "conversation"),
    (create(prompt={"id": "p"}), 400, "unsupported_parameter", "prompt"),
    (create(top_logprobs=21), 400, "invalid_value", "top_logprobs"),
    (create(include=["message.output_text.logprobs"]), 400, "invalid_value", "logprobs"),
    (create(truncation="some"), 400, "invalid_value", "truncation"),
    (create(metadata={"x": "y" * 513}), 400, "invalid_value", "metadata"),
    (create(n=2), 400, "invalid_value", "n"),
    (create([{"type": "function_call", "call_id": "c"}]), 400, "invalid_value", "input[0].name"),
    (create([{"content": [{"type": "input_image", "image_url": "x"}]}]), 400, "invalid_value", "input[0].content[0]"),
]


def test_a_mistake_names_its_field() -> None:
    service = house()
    with client(service) as http:
        for body, *expected in MISTAKES:
            assert [*error_of(http.post(URL, json=body))] == expected, body
        id = http.post(URL, json=create()).json()["id"]
        for query, code, field in (
            ("stream=true&starting_after=99", "invalid_value", "starting_after"),
            ("stream=true&starting_after=x", "invalid_value", "starting_after"),
        ):
            assert error_of(http.get(f"{URL}/{id}?{query}")) == (400, code, field)
        for query, field in (("limit=0", "limit"), ("order=up", "order"), ("after=x", "after")):
            assert error_of(http.get(f"{URL}/{id}/input_items?{query}")) == (400, "invalid_value", field)
    assert idle(service)


def test_one_tenant_never_sees_another_s() -> None:
    with client(house()) as http:
        mine, other = {TENANT: "mine"}, {TENANT: "other"}
        id = http.post(URL, json=create("secret", background=True), headers=mine).json()["id"]
        for call in (
            lambda: http.get(f"{URL}/{id}", headers=other),
            lambda: http.get(f"{URL}/{id}?stream=true", headers=other),
            lambda: http.get(f"{URL}/{id}/input_items", headers=other),
            lambda: http.post(f"{URL}/{id}/cancel", headers=other),
            lambda: http.delete(f"{URL}/{id}", headers=other),
            lambda: http.get(f"{URL}/{id}"),
        ):
            assert error_of(call()) == (404, "response_not_found", "id")
        refused = http.post(URL, json=create("and?", previous_response_id=id), headers=other)
        assert error_of(refused) == (400, "previous_response_not_found", "previous_response_id")
        with http.websocket_connect(URL, headers=other) as socket:
            socket.send_json({"type": "response.create", **create("and?", previous_response_id=id)})
            assert json.loads(socket.receive_text())["error"]["code"] == "previous_response_not_found"
        assert http.get(f"{URL}/{id}", headers=mine).status_code == 200


def test_prewarm_computes_the_prompt_and_says_nothing() -> None:
    service = make_service(memory={"allocator": "prefix"})
    with client(service) as http:
        text = "a long beginning that is shared"
        warmed = http.post(URL, json=create(text, generate=False)).json()
        assert (warmed["status"], warmed["output"]) == ("completed", [])
        assert warmed["usage"]["output_tokens"] == 0
        again = http.post(URL, json=create(text, prompt_cache_options={"prewarm": True})).json()
        assert again["usage"]["input_tokens_details"]["cached_tokens"] > 20


def test_the_oldest_messages_go_if_the_client_allows_it() -> None:
    def template(messages: Any, arguments: Any) -> list[int]:
        return list("".join(each["content"] for each in messages).encode())

    service = make_service(template=template, memory={"pages": 10}, scheduler={"max_context": 40})
    items = [{"role": "user", "content": letter * 10} for letter in "abcdef"]
    with client(service) as http:
        assert error_of(http.post(URL, json=create(items)))[1] == "context_length_exceeded"
        told = http.post(URL, json=create(items, truncation="auto", instructions="I:")).json()
        assert text_of(told) == "I:" + "d" * 6
        assert told["usage"]["input_tokens"] == 32
        too_long = create([{"role": "user", "content": "x" * 99}], truncation="auto")
        assert error_of(http.post(URL, json=too_long))[1] == "context_length_exceeded"


def test_what_is_stored_outlives_the_process(tmp_path: Path) -> None:
    path, mine = tmp_path / "store.db", {TENANT: "mine"}
    with client(house(path=path, keep=1)) as http:
        first = http.post(URL, json=create("one"), headers=mine).json()
        second = http.post(URL, json=create("two", previous_response_id=first["id"]), headers=mine).json()
        gone = http.post(URL, json=create("three"), headers=mine).json()
        unstored = http.post(URL, json=create("four", store=False), headers=mine).json()
        assert http.get(f"{URL}/{first['id']}", headers=mine).json() == first  # from the disk: there is room for one
        assert http.delete(f"{URL}/{gone['id']}", headers=mine).json()["deleted"]
    with client(house(path=path)) as http:
        assert http.get(f"{URL}/{second['id']}", headers=mine).json() == second
        for id, headers in ((gone["id"], mine), (unstored["id"], mine), (second["id"], {})):
            assert error_of(http.get(f"{URL}/{id}", headers=headers)) == (404, "response_not_found", "id")
        assert error_of(http.get(f"{URL}/{second['id']}?stream=true", headers=mine)) == (410, "events_gone", "stream")
        assert http.post(f"{URL}/{second['id']}/cancel", headers=mine).json() == second
        third = http.post(URL, json=create("five", previous_response_id=second["id"]), headers=mine).json()
        items = http.get(f"{URL}/{third['id']}/input_items?order=asc", headers=mine).json()["data"]
        assert [each["content"][0]["text"] for each in items] == ["one", "one", "two", "two", "five"]
        assert http.delete(f"{URL}/{first['id']}", headers=mine).json()["deleted"]
        refused = http.post(URL, json=create("six", previous_response_id=third["id"]), headers=mine)
        assert error_of(refused) == (400, "previous_response_not_found", "previous_response_id")


def test_a_background_response_that_a_crash_cut_is_found_failed(tmp_path: Path) -> None:
    """The store as it is at that moment is what another process finds."""
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    with client(house(step_us=2000, lengths={1: 2000}, path=path)) as http:
        told = http.post(URL, json=create("ab", background=True)).json()
        assert told["status"] in ("queued", "in_progress")
        with sqlite3.connect(path) as here, sqlite3.connect(copy) as there:
            here.backup(there)
        here.close()
        there.close()
        http.delete(f"{URL}/{told['id']}")
    with client(house(path=copy)) as http:
        cut = http.get(f"{URL}/{told['id']}").json()
        assert (cut["status"], cut["error"]["code"]) == ("failed", "server_error")
        assert "ended before" in cut["error"]["message"]
    with client(house(path=path)) as http:
        assert http.get(f"{URL}/{told['id']}").status_code == 404


def test_a_stop_is_told_to_who_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with client(house(step_us=2000, lengths={1: 2000}, path=path)) as http:
        id = http.post(URL, json=create("ab", background=True)).json()["id"]
    with client(house(path=path)) as http:
        told = http.get(f"{URL}/{id}").json()
        assert (told["status"], told["error"]["code"]) == ("failed", "shutting_down")


def test_a_disk_that_hangs_fills_no_memory_with_responses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits to be written is bounded; the rest is kept in memory only, and everybody is answered."""
    monkeypatch.setattr(archive, "MOST_UNWRITTEN", 5000)
    service, back = house(path=tmp_path / "store.db"), threading.Event()
    with client(service) as http:
        store, app, portal = service.store, cast(Any, http.app), http.portal
        assert store is not None
        assert portal is not None

        async def hang() -> None:
            store.database.post(lambda db: back.wait(30))

        portal.call(hang)
        ids = [http.post(URL, json=create(f"number {index}")).json()["id"] for index in range(20)]
        kept = app.state.responses._archive
        assert 0 < len(kept._writing) < 20
        assert kept._unwritten <= 5000
        assert all(http.get(f"{URL}/{id}").status_code == 200 for id in ids)
        back.set()
    assert kept._unwritten == 0
    assert not kept._writing
