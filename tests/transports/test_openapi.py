"""The description: every route is in it, and a body is what it says exactly when the server reads it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.tests.transports.house import make_service

from starlette.testclient import TestClient  # isort: skip
from stepwell.core.config_admin import AdminConfig  # isort: skip
from stepwell.transports.gateway.digests import digest_of  # isort: skip
from stepwell.transports.http.admin_guard import admin_guards  # isort: skip
from stepwell.transports.http.app import create_app  # isort: skip
from stepwell.transports.http.described import described  # isort: skip
from stepwell.transports.http.openapi import description, listed  # isort: skip
from stepwell.transports.http.operations import OPERATIONS  # isort: skip

schemas = pytest.importorskip("jsonschema", reason="needs the extra `dev`")

ROUTES = [tuple(each.split(" ", 1)) for each in OPERATIONS]
BODIES = sorted({each.body for each in OPERATIONS.values() if each.body is not None}, key=lambda each: each.__name__)


def whole() -> dict[str, Any]:
    return description([(method, path) for method, path in ROUTES])


def test_every_route_has_its_line_and_every_line_its_route() -> None:
    app = create_app(make_service())
    assert sorted(f"{method} {path}" for method, path in listed(app.routes)) == sorted(OPERATIONS)


def test_the_document_is_whole() -> None:
    told = json.dumps(whole())
    names = set(whole()["components"]["schemas"])
    for part in told.split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in names
    assert "{id:path}" not in told
    for operation in OPERATIONS.values():
        assert operation.summary.endswith((".", "?"))


def test_what_each_route_wants_is_said_and_is_so() -> None:
    """As a client without anything, with a key, and with a token finds it."""
    key, token = "sw-" + "k" * 43, "sw-" + "t" * 43
    guards = admin_guards(AdminConfig(digests=(digest_of(token.encode()),)))
    keys = [{"name": "a", "digest": digest_of(key.encode()), "metrics": True}]
    app = create_app(make_service(keys=keys), guards)
    with TestClient(app, raise_server_exceptions=False) as http:
        told = http.get("/openapi.json", headers={"x-api-key": key}).json()
        schemes = told["components"]["securitySchemes"]
        heads = {"key": {"Authorization": f"Bearer {key}"}, "apiKey": {"x-api-key": key}}
        heads["adminToken"] = {"Authorization": f"Bearer {token}"}
        assert set(schemes) == set(heads)
        for path, operations in told["paths"].items():
            if path == "/admin/events":
                continue  # it does not end
            for method, operation in operations.items():
                enough = [set(each) for each in operation.get("security", told["security"])]
                for name, head in {"": {}, **heads}.items():
                    opened = not enough or {name} in enough
                    status = http.request(method, path.replace("{id}", "x"), headers=head).status_code
                    assert (status != 401) == opened, (method, path, name)


def test_without_keys_nothing_is_wanted_but_by_the_operator() -> None:
    with TestClient(create_app(make_service())) as http:
        told = http.get("/openapi.json").json()
    assert {} in told["security"]
    assert {} in told["paths"]["/admin/scheduler"]["get"]["security"]
    assert told["paths"]["/health"]["get"]["security"] == []


def values_for(name: str) -> st.SearchStrategy[Any]:
    small = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.floats(-3, 3).filter(lambda number: number % 1),
        st.text(max_size=3),
        st.just([]),
        st.just({}),
    )
    likely = {
        "messages": st.lists(
            st.fixed_dictionaries({"role": st.sampled_from(["user", ""]), "content": small}), max_size=2
        ),
        "prompt": st.one_of(st.text(max_size=2), st.lists(st.integers(-1, 9), max_size=2)),
    }
    return st.one_of(small, likely[name]) if name in likely else small


@pytest.mark.parametrize("struct", BODIES, ids=lambda struct: struct.__name__)
def test_a_schema_takes_what_the_decoder_takes(struct: type) -> None:
    """On bodies that are right but for a few fields; 1.0 is no whole number here, though JSON Schema calls it one."""
    names = [each.encode_name for each in msgspec.structs.fields(struct)]
    root = whole()
    validator = schemas.Draft202012Validator({"$ref": f"#/components/schemas/{struct.__name__}", **root})
    decoder = msgspec.json.Decoder(described(struct))

    @settings(max_examples=150, deadline=None)
    @given(
        st.dictionaries(st.sampled_from([*names, "unknown"]), st.just(None), max_size=3).flatmap(
            lambda chosen: st.fixed_dictionaries({name: values_for(name) for name in chosen})
        )
    )
    def agree(body: dict[str, Any]) -> None:
        try:
            decoder.decode(json.dumps(body))
            taken = True
        except msgspec.ValidationError:
            taken = False
        assert validator.is_valid(body) == taken, body

    agree()


@pytest.mark.parametrize("struct", BODIES, ids=lambda struct: struct.__name__)
def test_what_is_described_is_what_is_read(struct: type) -> None:
    """The same names, the same of them required, the same defaults."""
    ours = {each.name: each for each in msgspec.structs.fields(described(struct))}
    theirs = {each.name: each for each in msgspec.structs.fields(struct)}
    assert ours.keys() == theirs.keys()
    for name, field in theirs.items():
        assert ours[name].required == field.required, name
        if not isinstance(field.default, msgspec.Raw):
            assert ours[name].default == field.default, name
