"""``/admin/scheduler``: what it shows, whom it answers, what it refuses.  Under load: ``tests/e2e/test_swap.py``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stepwell.core.registry import names
from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.transports.house import chat, error_of, make_service

from starlette.testclient import TestClient  # isort: skip
from stepwell.transports.http.app import create_app  # isort: skip
from stepwell.transports.service import Service  # isort: skip

ADMIN = "/admin/scheduler"
BAD = ROOT / "tests" / "core" / "bad_policies.py"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with policies, ``Breaks`` and ``Waits``, that nobody registered."""
    return Path(shutil.copy(BAD, tmp_path / "faulty.py"))


def here(service: Service, host: str = "127.0.0.1", name: str = "127.0.0.1:8000") -> TestClient:
    """A client on this machine, or on another; use it as a context."""
    app = create_app(service)
    return TestClient(app, client=(host, 50_000), base_url=f"http://{name}", raise_server_exceptions=False)


# ------------------------------------------------------------------------------------------------ looking


def test_it_says_who_decides_and_over_what() -> None:
    with here(make_service(scheduler={"policy": "chat-batch", "options": {"aging_s": 5.0}})) as http:
        told = http.get(ADMIN).json()
    assert (told["policy"], told["configured"], told["swaps"]) == ("chat-batch", "chat-batch", 0)
    assert (told["options"]["aging_s"], told["options"]["preempt"]) == (5.0, "auto")
    assert told["promises"] == {
        "work_conserving": False,
        "bounded_wait": True,
        "respects_rank": True,
        "keeps_work": False,
    }
    assert told["queue"] == {"waiting": 0, "running": 0, "swapped": 0}
    assert told["pages"] == {"free": 400, "total": 400}
    assert told["last_fault"] is None
    assert told["since"].endswith("+00:00")


# ------------------------------------------------------------------------------------------------ who may


@pytest.mark.parametrize(
    ("host", "name", "headers"),
    [
        ("10.0.0.7", "127.0.0.1:8000", {}),
        ("::ffff:10.0.0.7", "127.0.0.1:8000", {}),
        ("127.0.0.1", "evil.example", {}),  # a name that was made to point here
        ("127.0.0.1", "127.0.0.1:8000", {"Origin": "http://127.0.0.1:8000"}),
        ("127.0.0.1", "127.0.0.1:8000", {"X-Forwarded-For": "127.0.0.1"}),
        ("127.0.0.1", "127.0.0.1:8000", {"Forwarded": "for=127.0.0.1"}),
    ],
)
def test_only_this_machine_is_answered(host: str, name: str, headers: dict[str, str]) -> None:
    service = make_service(server={"origins": ("*",)})
    with here(service, host, name) as http:
        for answer in (http.get(ADMIN, headers=headers), http.put(ADMIN, json={"policy": "swap"}, headers=headers)):
            assert error_of(answer)[:2] == (403, "admin_local_only")
        before = http.options(ADMIN, headers={"Origin": "https://a.example", "Access-Control-Request-Method": "PUT"})
        assert before.status_code == 400
        assert http.get("/health").status_code == 200
    assert service.scheduler.policy_name == "fcfs"


@pytest.mark.parametrize(
    ("host", "name"), [("127.0.0.9", "localhost"), ("::1", "[::1]:80"), ("::ffff:127.0.0.1", "127.0.0.1")]
)
def test_every_way_onto_this_machine_is_one(host: str, name: str) -> None:
    with here(make_service(), host, name) as http:
        assert http.get(ADMIN).status_code == 200


# ------------------------------------------------------------------------------------------------ changing


@pytest.mark.parametrize("policy", names("policies"))
def test_any_registered_policy_takes_over(policy: str) -> None:
    with here(make_service()) as http:
        answer = http.put(ADMIN, json={"policy": policy, "why": "a try"})
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["old"]["policy"], told["new"]["policy"]) == ("fcfs", policy)
        assert (told["scheduler"]["swaps"], told["scheduler"]["why"]) == (1, "a try")
        assert http.get(ADMIN).json()["policy"] == policy
        assert http.post("/v1/chat/completions", json=chat("hello")).json()["choices"][0]["message"]["content"]
        assert (
            'stepwell:policy_swaps_total{by="operator",engine="0",model_name="echo"} 1.0' in http.get("/metrics").text
        )


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"policy": "fcsf"}, "policy", "did you mean 'fcfs'? Allowed: chat-batch,"),
        ({"policy": "chat-batch", "options": {"aging": 3}}, "options.aging", "did you mean 'aging_s'?"),
        ({"policy": "chat-batch", "options": {"aging_s": "long"}}, "options.aging_s", "expected float"),
        ({"policy": "srpt", "options": {"predictor": "oracle"}}, "options.predictor", "for simulations only"),
        (
            {"policy": "srpt", "options": {"predictor": "os:system"}},
            "options.predictor",
            "unknown predictor 'os:system'",
        ),
        ({"policy": "least-slack", "options": {"estimate": "os:system"}}, "options.estimate", "unknown"),
        ({"policy": "stepwell.tests.core.bad_policies:Waits"}, "policy", "unknown policy"),
        ({"policy": f"{BAD}:Waits"}, "policy", "unknown policy"),
        ({"policy": str(BAD)}, "policy", "unknown policy"),
        ({"policy": 3}, "policy", "expected str"),
        ({"options": {}}, "policy", "is required"),
        ({"policy": "fcfs", "polcy": 1}, "", "polcy"),
        ([], "", "object"),
    ],
)
def test_what_cannot_be_made_is_refused_and_the_present_one_goes_on(body: Any, field: str, words: str) -> None:
    with here(make_service(scheduler={"policy": "srpt"})) as http:
        answer = http.put(ADMIN, json=body)
        assert error_of(answer)[0] == 400
        assert words in answer.json()["error"]["message"]
        assert (answer.json()["error"]["param"] or "").removeprefix("scheduler.") == field
        told = http.get(ADMIN).json()
        assert (told["policy"], told["swaps"]) == ("srpt", 0)
        assert http.put(ADMIN, content=b"{").status_code == 400
        assert http.put(ADMIN, content=b"{" + b" " * (1 << 17)).status_code == 413


def test_code_that_the_configuration_named_may_come_back_and_nothing_else_of_its_file(file: Path) -> None:
    own = f"{file}:Breaks"
    with here(make_service(scheduler={"policy": own, "options": {"at": 1000}})) as http:
        assert http.put(ADMIN, json={"policy": "swap"}).status_code == 200
        back = http.put(ADMIN, json={"policy": own}).json()
        assert back["new"] == {"policy": own, "options": {"at": 1000, "how": "unknown"}}, "as configured"
        again = http.put(ADMIN, json={"policy": own, "options": {"at": 2000}}).json()
        assert again["new"]["options"] == {"at": 2000, "how": "unknown"}
        for name in (f"{file}:Waits", f"{file.parent}/./{file.name}:Breaks"):
            assert error_of(http.put(ADMIN, json={"policy": name}))[0] == 400


def test_the_same_policy_with_other_options_keeps_its_memory() -> None:
    service = make_service(scheduler={"policy": "vtc"})
    with here(service) as http:
        http.post("/v1/chat/completions", json=chat("hello"))
        before = service.scheduler.memory()
        assert http.put(ADMIN, json={"policy": "vtc", "options": {"output_price": 3}}).status_code == 200
        assert service.scheduler.memory() == before
        http.put(ADMIN, json={"policy": "fcfs"})
        http.put(ADMIN, json={"policy": "vtc"})
        assert service.scheduler.memory() != before


# ------------------------------------------------------------------------------------------------ a policy that fails


@pytest.mark.parametrize("how", ["unknown", "raises", "observe", "empty", "past"])
def test_a_fault_is_said_everywhere_until_somebody_chooses(how: str, file: Path) -> None:
    own = f"{file}:Breaks"
    with here(make_service(scheduler={"policy": own, "options": {"at": 3, "how": how}})) as http:
        assert http.get("/ready").json() == {"status": "ok", "reason": "", "warnings": []}
        for _ in range(3):
            answer = http.post("/v1/chat/completions", json=chat("hello there", n=2))
            assert [each["message"]["content"] for each in answer.json()["choices"]] == ["hello there"] * 2
        told = http.get(ADMIN).json()
        assert (told["policy"], told["stands_in"], told["swaps"], told["fallbacks"]) == ("fcfs", True, 1, 1)
        fault = told["last_fault"]
        assert fault["policy"] == own
        assert fault["rule"] in told["why"]
        for path in ("/ready", "/health"):
            answer = http.get(path)
            assert answer.status_code == 200
            assert f"policy faulty.py:Breaks broke the rule {fault['rule']!r}; fcfs decides instead" in str(
                answer.json()["warnings"]
            )
            assert str(file.parent) not in answer.text
        metrics = http.get("/metrics").text
        assert f'policy="faulty.py:Breaks",rule="{fault["rule"]}"}} 1.0' in metrics
        assert 'stepwell:policy_swaps_total{by="fault",engine="0",model_name="echo"} 1.0' in metrics
        chosen = http.put(ADMIN, json={"policy": "swap"}).json()["scheduler"]
        assert (chosen["stands_in"], chosen["last_fault"]) == (False, fault)
        assert http.get("/ready").json()["warnings"] == []


# ------------------------------------------------------------------------------------------------ the shadow


def test_a_shadow_tells_what_it_would_have_done_and_stays_when_the_live_policy_goes() -> None:
    with here(make_service(scheduler={"running_limit": 1, "shadow": "chat-batch", "shadow_share": 1.0})) as http:

        def ask(tier: str) -> None:
            http.post("/v1/chat/completions", json=chat("hello", n=3, service_tier=tier))

        ask("flex")
        before = http.get(ADMIN).json()["shadow"]
        assert (before["policy"], before["options"]["aging_s"], before["off"]) == ("chat-batch", 30.0, "")
        assert before["compared"] > 0
        assert before["planning_ns"] >= before["longest_plan_ns"] > 0
        http.put(ADMIN, json={"policy": "sjf"})
        ask("auto")
        after = http.get(ADMIN).json()["shadow"]
        assert after["compared"] > before["compared"]
        metrics = http.get("/metrics").text
        said = {
            word: f'stepwell:shadow_steps_total{{engine="0",model_name="echo",said="{word}"}}'
            for word in ("same", "different")
        }
        counts = {word: float(metrics.split(f"{line} ")[1].split()[0]) for word, line in said.items()}
        assert sum(counts.values()) == after["compared"]
        assert 'stepwell:shadow_on{engine="0",model_name="echo"} 1.0' in metrics


def test_a_shadow_that_fails_is_said_and_harms_nobody(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"at": 2, "how": "raises"}
    with here(make_service(scheduler={"shadow": f"{file}:Breaks", "shadow_options": options})) as http:
        for _ in range(2):
            answer = http.post("/v1/chat/completions", json=chat("hello there", n=2))
            assert [each["message"]["content"] for each in answer.json()["choices"]] == ["hello there"] * 2
        told = http.get(ADMIN).json()
        assert (told["policy"], told["last_fault"]) == ("fcfs", None)
        assert told["shadow"]["off"].startswith("plan raised ZeroDivisionError: a bug in the policy")
        assert http.get("/ready").json()["warnings"] == []
        assert 'stepwell:shadow_on{engine="0",model_name="echo"} 0.0' in http.get("/metrics").text
    assert "shadow policy switched off, the live one goes on" in capsys.readouterr().out


def test_an_engine_that_does_not_serve_takes_no_policy() -> None:
    service = make_service()
    with here(service) as http:
        service.engine.failed = "a law is broken"
        assert error_of(http.put(ADMIN, json={"policy": "swap"}))[:2] == (503, "not_ready")
        service.engine.failed = ""


# ------------------------------------------------------------------------------------------------ pins


def test_a_pinned_prompt_is_still_found_after_all_others_were_given_up() -> None:
    """A pool of 60 pages of 4 tokens, and prompts of 5 pages that go through it; a quarter of it may be pinned."""
    service = make_service(memory={"allocator": "prefix", "pages": 60})
    with here(service) as http:

        def found(content: str) -> int:
            usage = http.post("/v1/chat/completions", json=chat(content, max_tokens=1)).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        def others() -> None:
            for index in range(40):
                found(f"{index:02}" * 10)

        body = {"messages": [{"role": "user", "content": "s" * 40}]}
        answer = http.put("/admin/pins", json=body)
        assert answer.json() == {"pinned": True, "pages": 10}
        assert http.put("/admin/pins", json=body).json() == answer.json(), "again: it needs no more room"
        assert found("s" * 40 + "first") == 0
        others()
        assert found("s" * 40 + "later") == 40
        assert http.request("DELETE", "/admin/pins", json=body).json() == {"pinned": False, "pages": 10}
        others()
        assert found("s" * 40 + "last") == 0
        long = {"messages": [{"role": "user", "content": "x" * 80}]}
        assert error_of(http.put("/admin/pins", json=long))[0] == 400
        short = {"messages": [{"role": "user", "content": "x"}]}
        assert error_of(http.put("/admin/pins", json=short))[::2] == (400, "messages"), "less than a page"
        nobody = http.put("/admin/pins", json={**body, "tenant": "a b"})
        assert error_of(nobody)[::2] == (400, "tenant"), "which no request could be of"
        other = {**body, "tenant": "another"}
        assert http.put("/admin/pins", json=other).status_code == 200
        others()
        found("s" * 40)
        others()
        assert found("s" * 40) == 0, "it is another tenant's prompt that is pinned"
    refused = here(service, "10.0.0.7").put("/admin/pins", json=body)
    assert error_of(refused)[1] == "admin_local_only"
