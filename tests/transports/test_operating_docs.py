"""docs/operating.md: its settings, metrics, routes and dashboards are those that there are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.helpers import settings_table
from stepwell.tests.transports.house import chat, client, make_service

from stepwell.transports.http.admin import ADMIN  # isort: skip

PAGE = settings_table.PAGE
BOARD = ROOT / "deploy" / "grafana" / "stepwell.json"
KEDA = ROOT / "deploy" / "keda" / "scaledobject.yaml"
METRIC = re.compile(r"\b((?:vllm|stepwell):[a-z0-9_]+)")
FAMILY = re.compile(r"^# TYPE (\S+) (\S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def exposition() -> str:
    """Of a server that has answered once."""
    with client(make_service()) as http:
        http.post("/v1/chat/completions", json=chat("hello"))
        return str(http.get("/metrics").text)


def series(exposition: str) -> set[str]:
    """Every name that a query may use."""
    names: set[str] = set()
    for name, kind in FAMILY.findall(exposition):
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names


def test_every_setting_is_there_and_says_what_it_is_for() -> None:
    table = settings_table.table()
    assert settings_table.on_the_page() == table, "python -m stepwell.tests.helpers.settings_table writes it anew"
    silent = [line for line in table.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert silent == [], "a docstring behind the setting says what it is for"


def test_me_2_the_metrics_are_those_that_there_are(exposition: str) -> None:
    page = PAGE.read_text()
    section = page[page.index("## Metrics") : page.index("### What to be woken for")]
    rows = "\n".join(line.split("|")[1] for line in section.splitlines() if line.startswith("|"))
    named = re.findall(r"`((?:vllm|stepwell):\w+)", rows)
    assert sorted(named) == sorted(name for name, _ in FAMILY.findall(exposition))
    helps = re.findall(r"^# HELP (\S+) \S", exposition, re.MULTILINE)
    assert sorted(helps) == sorted(named)


def test_alerts_ask_for_metrics_that_there_are(exposition: str) -> None:
    page = PAGE.read_text()
    alerts = page[page.index("### What to be woken for") : page.index("### Dashboard")]
    asked = set(METRIC.findall(alerts))
    assert len(asked) > 8
    assert asked <= series(exposition)


def test_every_admin_route_is_there() -> None:
    page = PAGE.read_text()
    section = page[page.index("## The operator's routes") : page.index("`stepwell admin` asks")]
    said = {tuple(each) for each in re.findall(r"`(?:(GET|PUT|POST|DELETE) )(/admin[^`]*)`", section)}
    said |= {("PUT", "/admin/pins")}  # written as PUT, DELETE
    there = {(method, each.path) for each in ADMIN for method in (each.methods or ()) if method != "HEAD"}
    assert said == there


# ------------------------------------------------------------------------------------------------ dashboards


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in board["panels"] if each["type"] != "row"]


def test_the_board_asks_for_metrics_that_there_are_and_every_panel_asks(exposition: str) -> None:
    board = json.loads(BOARD.read_text())
    known = series(exposition)
    for panel in panels(board):
        asked = {name for target in panel["targets"] for name in METRIC.findall(target["expr"])}
        assert asked, panel["title"]
        assert asked <= known, panel["title"]
    ids = [each["id"] for each in board["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_board_has_the_panels_of_vllms_under_their_titles_and_its_own() -> None:
    titles = [each["title"] for each in json.loads(BOARD.read_text())["panels"]]
    for title in (
        "E2E Request Latency",
        "Token Throughput",
        "Inter Token Latency",
        "Scheduler State",
        "Time To First Token Latency",
        "Cache Utilization",
        "Request Prompt Length",
        "Request Generation Length",
        "Finish Reason",
        "Queue Time",
        "Requests Prefill and Decode Time",
        "Time Per Output Token Latency",
        "Decision Time",
        "Batch",
        "SLO Attainment",
        "Service by Tenant",
        "Queue Age",
        "Predicted and Actual Wait",
    ):
        assert title in titles


def test_the_scaling_rule_asks_for_metrics_that_there_are(exposition: str) -> None:
    asked = set(METRIC.findall(KEDA.read_text()))
    assert {"vllm:num_requests_waiting", "stepwell:estimated_wait_seconds"} <= asked <= series(exposition)
