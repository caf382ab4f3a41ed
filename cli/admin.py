"""``stepwell admin``: a thin client of a server's operator routes."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from stepwell.cli import admin_tables as tables
from stepwell.core.config_admin import ADMIN_TOKEN
from stepwell.core.errors import CapacityError, UserError

HELP = "Operate a running server: who decides, who waits and why; pause, drain, abort; settings, journal, events."

EXAMPLES = """\
examples:
  stepwell admin scheduler                               who decides, and over what
  stepwell admin policy chat-batch --options '{"aging_s": 10}' --why evening
  stepwell admin requests --state waiting                who waits, and for what
  stepwell admin request 117                             one request's life so far
  stepwell admin pause --why "new weights"               no step is launched until: stepwell admin resume
  stepwell admin drain                                   as SIGTERM does
  stepwell admin abort --tenant acme                     or --request 117, --class batch, --all
  stepwell admin reset-cache
  stepwell admin config                                  settings that somebody set, and where (--json: all of them)
  stepwell admin journal on                              or off, rotate; alone: its state
  stepwell admin events --kinds admitted,preempted,finished

The token is taken from STEPWELL_ADMIN_TOKEN or --token-file; without one a server answers on its own machine only.
"""

URL = "http://127.0.0.1:8000"
TIMEOUT_S = 30.0
SILENCE_S = 120.0
"""A stream of events has a comment more often than this."""

Answer = dict[str, Any]
Ask = Callable[["Client", argparse.Namespace], Answer]
Show = Callable[[Answer], Iterator[str]]


def arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")

    def part(name: str, text: str) -> argparse.ArgumentParser:
        own = parts.add_parser(name, help=text)
        own.add_argument("--url", default=URL, metavar="URL", help=f"of the server, or of its admin port ({URL})")
        own.add_argument("--token-file", type=Path, metavar="FILE", help="a file whose first line is the token")
        own.add_argument("--json", action="store_true", help="the answer as it is")
        return own

    part("scheduler", "who decides, since when, over how much")
    policy = part("policy", "another policy, or other options, from the next step on")
    policy.add_argument("name", metavar="POLICY")
    policy.add_argument("--options", metavar="JSON", help="its table; left out: as configured, or its defaults")
    requests = part("requests", "who runs and who waits, and why")
    for name in ("state", "class", "tenant", "limit"):
        requests.add_argument(f"--{name}", metavar=name.upper())
    part("request", "one request's life so far").add_argument(
        "id", metavar="ID", help="its number, or what a client was told"
    )
    reasons = [policy]
    reasons += [part("pause", "launch no step"), part("resume", "launch steps again")]
    part("drain", "take nothing new, and end when what runs has ended; --state only asks").add_argument(
        "--state", action="store_true", help="how far it is"
    )
    abort = part("abort", "end requests; whoever asked is told")
    whom = abort.add_mutually_exclusive_group(required=True)
    whom.add_argument("--request", type=int, metavar="ID")
    whom.add_argument("--tenant", metavar="TENANT")
    whom.add_argument("--class", metavar="CLASS")
    whom.add_argument("--all", action="store_true")
    reasons += [abort, part("reset-cache", "give up what is kept of earlier prompts")]
    for each in reasons:
        each.add_argument("--why", default="", metavar="TEXT", help="goes into the log and the journal")
    part("config", "settings that somebody set, and where")
    part("journal", "its state; on, off, or a new segment").add_argument(
        "act", nargs="?", choices=("on", "off", "rotate"), metavar="on|off|rotate"
    )
    events = part("events", "what happens and is decided, until ^C")
    for name in ("kinds", "request", "tenant", "class", "after"):
        events.add_argument(f"--{name}", metavar=name.upper())


def run(args: argparse.Namespace) -> int:
    client = Client(args.url, token_of(args.token_file, os.environ))
    if args.part == "events":
        given = {name: getattr(args, name) for name in ("kinds", "request", "tenant", "class", "after")}
        for line in client.events({name: value for name, value in given.items() if value is not None}):
            for shown in [line] if args.json else tables.turn(json.loads(line)):
                print(shown, flush=True)
        return 0
    ask, show = PARTS[args.part]
    answer = ask(client, args)
    if args.json:
        print(json.dumps(answer, indent=1, ensure_ascii=False))
    else:
        for text in show(answer):
            print(text)
    return 0


def token_of(file: Path | None, environ: Mapping[str, str]) -> str:
    """The file's first line, or what the environment says; empty if neither is there."""
    if file is None:
        return environ.get(ADMIN_TOKEN, "").strip()
    try:
        token = file.read_text(encoding="ascii").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or "it is no plain text"
        raise UserError(f"cannot read a token from {file}: {why}") from None
    if not token:
        raise UserError(f"the first line of {file} is empty: there is no token in it")
    return token


class Client:
    """Of one server.  Raises ``UserError`` with what the server says, or why it cannot be asked."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{url!r} is no address such as {URL}", field="--url")
        self.url = url
        self._parts = parts
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Answer:
        """One answer, whole."""
        with _closing(self._connect(TIMEOUT_S)) as connection:
            response = self._send(connection, method, path, body, query)
            answer: Answer = json.loads(response.read() or b"{}")
            return answer

    def events(self, query: Mapping[str, str]) -> Iterator[str]:
        """The data of every event of ``/admin/events``, with its name in ``event``."""
        with _closing(self._connect(SILENCE_S)) as connection:
            response = self._send(connection, "GET", "/admin/events", None, query)
            name = ""
            for raw in response:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield json.dumps({"event": name, **json.loads(line.removeprefix("data: "))}, ensure_ascii=False)

    def _connect(self, timeout_s: float) -> HTTPConnection:
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port, timeout=timeout_s)

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any],
    ) -> HTTPResponse:
        asked = f"{self._parts.path.rstrip('/')}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            connection.request(method, asked, json.dumps(body) if body is not None else None, self._headers)
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            raise UserError(f"{self.url} does not answer: {getattr(error, 'strerror', '') or error}") from None
        if response.status >= 400:
            raise _refusal(response, path)
        return response


class _closing:
    """``contextlib.closing`` for a connection, whatever becomes of the answer."""

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection

    def __enter__(self) -> HTTPConnection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _refusal(response: HTTPResponse, path: str) -> UserError | CapacityError:
    text = response.read(4096)
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return UserError(f"the server answers {response.status} to {path}; is that its admin port?")
    if response.status in (429, 503):
        return CapacityError(error["message"], code=error["code"] or "")
    if response.status == 401:
        return UserError(f"{error['message']} ({ADMIN_TOKEN}, or --token-file)")
    return UserError(error["message"], field=error.get("param") or "")


# ------------------------------------------------------------------------------------------------ parts


def _policy(client: Client, args: argparse.Namespace) -> Answer:
    body: dict[str, Any] = {"policy": args.name, "why": args.why}
    if args.options is not None:
        try:
            body["options"] = json.loads(args.options)
        except ValueError as error:
            raise UserError(f"is no JSON: {error}", field="--options") from None
    return dict(client.ask("PUT", "/admin/scheduler", body)["scheduler"])


def _requests(client: Client, args: argparse.Namespace) -> Answer:
    chosen = {name: getattr(args, name) for name in ("state", "class", "tenant", "limit")}
    return client.ask("GET", "/admin/requests", **{name: value for name, value in chosen.items() if value is not None})


def _abort(client: Client, args: argparse.Namespace) -> Answer:
    whom = {name: getattr(args, name) for name in ("request", "tenant", "class", "all")}
    body = {name: value for name, value in whom.items() if value not in (None, False)}
    return client.ask("POST", "/admin/abort", {**body, "why": args.why})


def _journal(client: Client, args: argparse.Namespace) -> Answer:
    if args.act is None:
        return client.ask("GET", "/admin/journal")
    body = {"rotate": True} if args.act == "rotate" else {"on": args.act == "on"}
    return client.ask("POST", "/admin/journal", body)


def _because(path: str) -> Ask:
    return lambda client, args: client.ask("POST", path, {"why": args.why})


PARTS: Mapping[str, tuple[Ask, Show]] = {
    "scheduler": (lambda client, args: client.ask("GET", "/admin/scheduler"), tables.scheduler),
    "policy": (_policy, tables.scheduler),
    "requests": (_requests, tables.requests),
    "request": (lambda client, args: client.ask("GET", f"/admin/requests/{quote(str(args.id))}"), tables.request),
    "pause": (_because("/admin/pause"), tables.busy),
    "resume": (_because("/admin/resume"), tables.busy),
    "drain": (lambda client, args: client.ask("GET" if args.state else "POST", "/admin/drain"), tables.busy),
    "abort": (_abort, tables.aborted),
    "reset-cache": (_because("/admin/cache/reset"), tables.cache),
    "config": (lambda client, args: client.ask("GET", "/admin/config"), tables.config),
    "journal": (_journal, tables.plain),
}
