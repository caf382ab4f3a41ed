"""Pages of other origins: what a browser asks first, and what it needs to find in an answer to show it to the page."""

from __future__ import annotations

import pytest

from stepwell.tests.transports.house import chat, client, events, make_service

CHAT = "/v1/chat/completions"
PAGE, OTHER = "https://chat.example", "https://evil.example"
ASKED = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}


@pytest.mark.parametrize("origins", [(PAGE,), ("*",)])
def test_a_page_that_may_call_is_answered_in_every_way(origins: tuple[str, ...]) -> None:
    allowed = {PAGE, "*"}
    with client(make_service(server={"origins": origins})) as http:
        before = http.options(CHAT, headers={"Origin": PAGE, **ASKED})
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] in allowed
        assert "POST" in before.headers["access-control-allow-methods"]
        named = before.headers["access-control-allow-headers"].lower()
        assert all(name in named for name in ("authorization", "content-type"))
        stream = http.post(CHAT, json=chat(stream=True), headers={"Origin": PAGE})
        assert events(stream.text)[-1]["choices"][0]["finish_reason"] == "stop"
        refused = http.post(CHAT, json=chat(max_tokens=0), headers={"Origin": PAGE})
        assert refused.status_code == 400
        for answer in (stream, refused, http.get("/v1/models", headers={"Origin": PAGE})):
            assert answer.headers["access-control-allow-origin"] in allowed
            assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()


@pytest.mark.parametrize("origins", [(PAGE,), ()])
def test_any_other_page_is_not(origins: tuple[str, ...]) -> None:
    with client(make_service(server={"origins": origins})) as http:
        before = http.options(CHAT, headers={"Origin": OTHER, **ASKED})
        assert before.status_code >= 400
        answers = [before, http.post(CHAT, json=chat(stream=True), headers={"Origin": OTHER})]
    assert all("access-control-allow-origin" not in answer.headers for answer in answers)
