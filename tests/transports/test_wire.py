"""What a request says of itself: tiers, priorities and headers become class, tenant, priority and program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.datastructures import Headers

from stepwell.core.config import ClassConfig, Config, PriorityRange, WireConfig, validate
from stepwell.core.config_load import resolve
from stepwell.core.errors import UserError
from stepwell.core.events import Submitted
from stepwell.core.types import MAX_PRIORITY
from stepwell.tests.transports.house import chat, client, error_of, events, make_service
from stepwell.transports.http.requests import Sampled
from stepwell.transports.wire import TIERS, Standing, Wire

CLASSES = tuple(ClassConfig(name=name, rank=rank) for name, rank in (("slow", 9), ("fast", 0), ("mid", 3)))
RULES: dict[str, Any] = {
    "tiers": {"flex": "slow", "fast": "fast", "gold": "fast", "default": "mid"},
    "priorities": (PriorityRange(at_least=-5, klass="fast"), PriorityRange(at_least=0, klass="mid")),
    "tenant_header": "x-llm-d-inference-fairness-id",
}


def standing(says: Mapping[str, Any], headers: Mapping[str, str] | None = None, **rules: Any) -> Standing:
    config = validate(Config(classes=CLASSES, wire=WireConfig(**rules)))
    return Wire(config).standing(Sampled(**says), headers or {})


@pytest.mark.parametrize(
    ("says", "klass", "tier"),
    [
        ({}, "fast", "default"),
        ({"service_tier": "flex"}, "slow", "flex"),
        *(({"service_tier": tier}, "fast", "default") for tier in TIERS if tier != "flex"),
        ({"priority": 0}, "fast", "default"),
        ({"priority": -MAX_PRIORITY}, "fast", "default"),
        ({"priority": 1}, "slow", "default"),
        ({"priority": -3, "service_tier": "flex"}, "slow", "flex"),
    ],
)
def test_unless_configured_flex_and_worse_priorities_are_served_last(
    says: dict[str, Any], klass: str, tier: str
) -> None:
    found = standing(says)
    assert (found.klass, found.tier, found.priority) == (klass, tier, says.get("priority", 0))


@pytest.mark.parametrize(
    ("says", "headers", "klass", "tier"),
    [
        ({"service_tier": "gold"}, {}, "fast", "gold"),
        ({"service_tier": "fast"}, {}, "fast", "priority"),
        ({"service_tier": "default"}, {}, "mid", "default"),
        ({"service_tier": "scale"}, {}, "fast", "default"),
        ({"service_tier": "flex", "priority": -6}, {}, "slow", "flex"),
        ({"service_tier": "flex", "priority": -5}, {}, "fast", "default"),
        ({"service_tier": "flex", "priority": -1}, {}, "fast", "default"),
        ({"service_tier": "flex", "priority": 7}, {}, "mid", "default"),
        ({"service_tier": "flex", "priority": 7}, {"X-Stepwell-Class": "slow"}, "slow", "default"),
    ],
)
def test_the_table_of_the_configuration(says: dict[str, Any], headers: dict[str, str], klass: str, tier: str) -> None:
    rules = {**RULES, "priorities": RULES["priorities"]} if "priority" in says else {**RULES, "priorities": ()}
    found = standing(says, headers, **rules)
    assert (found.klass, found.tier) == (klass, tier)


def test_a_tenant_is_believed_only_from_the_header_that_is_named() -> None:
    told = {"x-llm-d-inference-fairness-id": "team/a", "X-Stepwell-Tenant": "b"}
    assert standing({}, told).tenant == "default"
    assert standing({}, told, tenant_header="X-Stepwell-Tenant").tenant == "b"
    assert standing({}, told, **RULES).tenant == "team/a"
    with pytest.raises(UserError) as refused:
        standing({}, {"X-Stepwell-Tenant": "a b"}, tenant_header="X-Stepwell-Tenant")
    assert refused.value.field == "X-Stepwell-Tenant"


@pytest.mark.parametrize("which", ["class_header", "tenant_header", "program_header"])
def test_a_header_given_twice_is_refused(which: str) -> None:
    """A gateway that adds its own header beside the client's must not leave the choice to chance."""
    wire = Wire(validate(Config(wire=WireConfig(tenant_header="X-Stepwell-Tenant"))))
    name = getattr(wire.rules, which)
    headers = Headers(raw=[(name.lower().encode(), b"batch"), (name.lower().encode(), b"chat")])
    with pytest.raises(UserError, match="given twice") as refused:
        wire.standing(Sampled(), headers)
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("wire", "field"),
    [
        ({"tenant_header": "X Tenant"}, "wire.tenant_header"),
        ({"class_header": "Klasse:"}, "wire.class_header"),
        ({"tenant_header": "x-stepwell-class"}, "wire.tenant_header"),
        ({"tenant_header": "X-One", "program_header": "x-one"}, "wire.program_header"),
    ],
)
def test_headers_have_names_that_can_be_sent_and_one_meaning(wire: dict[str, object], field: str) -> None:
    with pytest.raises(UserError) as refused:
        resolve(overrides=[f"wire.{name}={value}" for name, value in wire.items()])
    assert refused.value.field == field


def test_no_header_need_have_a_meaning() -> None:
    wire = {"class_header": "", "tenant_header": "", "program_header": ""}
    assert standing({}, {"": "x"}, **wire).tenant == "default"


def test_a_class_header_may_be_forbidden() -> None:
    assert standing({}, {"X-Stepwell-Class": "slow"}, class_header="").klass == "fast"


def test_a_program_is_a_digest_by_tenant_of_what_names_it_first() -> None:
    """A journal holds no names of people; and nobody spends what another tenant's program is given."""
    wire = Wire(validate(Config(wire=WireConfig(tenant_header="T"))))

    def program(headers: Mapping[str, str] | None = None, **says: Any) -> str:
        return wire.standing(Sampled(**says), headers or {}).program

    everything: dict[str, Any] = {"session_id": "s", "prompt_cache_key": "k", "safety_identifier": "i", "user": "u"}
    assert program() == program(session_id="") == ""
    found = [program(**dict(list(everything.items())[first:])) for first in range(4)]
    assert found == [program(**{name: value}) for name, value in everything.items()]
    assert len({*found, program({"X-Stepwell-Program": "p"}, **everything)}) == 5
    assert program({"X-Stepwell-Program": "s"}) == found[0], "it is the name that counts"
    assert program({"T": "a"}, session_id="s") != program({"T": "b"}, session_id="s") != found[0]
    assert all(len(each) == 16 for each in found)
    only = Wire(validate(Config(wire=WireConfig(program_fields=("prompt_cache_key",), program_header=""))))
    assert only.standing(Sampled(user="u", session_id="s"), {"X-Stepwell-Program": "p"}).program == ""


@pytest.mark.parametrize(
    ("rules", "field", "says"),
    [
        ("default = 'chta'", "wire.default", "did you mean 'chat'?"),
        ("tiers = {flex = 'x'}", "wire.tiers.flex", "Allowed: (first), (last), batch, chat"),
        ("priorities = [{at_least = 1, class = 'x'}]", "wire.priorities[0].class", "unknown class 'x'"),
        (
            "priorities = [{at_least = 1, class = 'chat'}, {at_least = 1, class = 'chat'}]",
            "wire.priorities[1].at_least",
            "must be above the one before, 1",
        ),
        ("priorities = [{at_least = 2147483648, class = 'chat'}]", "wire.priorities[0].at_least", "<= 2147483647"),
        ("program_fields = ['name']", "wire.program_fields[0]", "'session_id'"),
    ],
)
def test_a_wrong_table_is_named_at_start(rules: str, field: str, says: str, tmp_path: Any) -> None:
    path = tmp_path / "wire.toml"
    path.write_text(f"[wire]\n{rules}\n")
    with pytest.raises(UserError) as refused:
        resolve(path)
    assert refused.value.field == field
    assert says in refused.value.message


# ------------------------------------------------------------------------------------------------ served


def arrived(service: Any) -> list[Submitted]:
    """What the scheduler will be told, from now on."""
    found: list[Submitted] = []
    take, watched = service.scheduler.handle, found

    def handle(now_ns: int, events: Any) -> Any:
        watched.extend(each for each in events if isinstance(each, Submitted))
        return take(now_ns, events)

    service.scheduler.handle = handle
    return found


def test_every_endpoint_tells_the_scheduler_and_the_answer_says_the_tier() -> None:
    service = make_service()
    told = arrived(service)
    headers = {"X-Stepwell-Program": "loop", "X-Stepwell-Class": "batch"}
    with client(service) as http:
        plain = http.post("/v1/chat/completions", json=chat())
        assert "service_tier" not in plain.json()
        flex = http.post("/v1/chat/completions", json=chat(service_tier="flex", priority=-7))
        assert flex.json()["service_tier"] == "flex"
        text = http.post("/v1/completions", json={"prompt": "a", "service_tier": "auto", "user": "u"}, headers=headers)
        assert text.json()["service_tier"] == "default"
        stream = http.post("/v1/chat/completions", json=chat(service_tier="flex", stream=True))
        assert {each["service_tier"] for each in events(stream.text)} == {"flex"}
        with http.websocket_connect("/v1/responses", headers=headers) as socket:
            socket.send_json({"type": "response.create", "input": "a", "service_tier": "flex", "priority": 3})
            while (event := json.loads(socket.receive_text()))["type"] != "response.completed":
                pass
            assert event["response"]["service_tier"] == "default", "the header's class is not the tier's"
    assert [(each.klass, each.priority) for each in told] == [
        ("chat", 0),
        ("batch", -7),
        ("batch", 0),
        ("batch", 0),
        ("batch", 3),
    ]
    assert [bool(each.program) for each in told] == [False, False, True, False, True]
    assert told[2].program == told[4].program
    assert {each.tenant for each in told} == {"default"}


@pytest.mark.parametrize(
    ("fields", "headers", "param"),
    [
        ({"service_tier": "golden"}, {}, "service_tier"),
        ({"service_tier": 3}, {}, "service_tier"),
        ({"priority": 1 << 31}, {}, "priority"),
        ({"priority": "high"}, {}, "priority"),
        ({"priority": 1.5}, {}, "priority"),
        ({"user": "u" * 2000}, {}, "user"),
        ({"prompt_cache_key": ["a"]}, {}, "prompt_cache_key"),
        ({}, {"X-Stepwell-Class": "royal"}, "X-Stepwell-Class"),
    ],
)
def test_what_is_unknown_is_named(fields: dict[str, Any], headers: dict[str, str], param: str) -> None:
    with client(make_service()) as http:
        refused = http.post("/v1/chat/completions", json=chat(**fields), headers=headers)
        assert error_of(refused) == (400, "invalid_value", param)
        with http.websocket_connect("/v1/responses", headers=headers) as socket:
            socket.send_json({"type": "response.create", "input": "a", **fields})
            event = json.loads(socket.receive_text())
            assert (event["type"], event["status"], event["error"]["param"]) == ("error", 400, param)
