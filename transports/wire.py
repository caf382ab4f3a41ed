"""What a request says of itself beside its prompt, and what that comes to here: class, tenant, priority, program.

The rules are ``[wire]`` of the configuration.  No sockets and no HTTP in here: headers come as a mapping.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Protocol

import msgspec

from stepwell.core.config import Config, class_of
from stepwell.core.config_gateway import KeyConfig
from stepwell.core.config_types import TENANT_NAME
from stepwell.core.page_keys import salt_of
from stepwell.core.types import NS_PER_MS
from stepwell.transports.errors import RequestError
from stepwell.transports.gateway.caller import HEADER, class_in, key_in, tenant_in
from stepwell.transports.gateway.gateway import Gateway
from stepwell.transports.gateway.keys import unauthorised

TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
"""Of OpenAI; those that ``wire.tiers`` does not name are served as ``default``."""

_TENANT = re.compile(TENANT_NAME)
_MILLISECONDS = re.compile(r"[1-9][0-9]{0,8}")


class Says(Protocol):
    """The fields of a body that speak of it."""

    service_tier: str | None
    priority: int | None
    session_id: str | None
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is to the scheduler.  ``tier`` is the service tier that it is served as."""

    klass: str
    tenant: str = "default"
    tier: str = "default"
    priority: int = 0
    program: str = ""
    deadline_ns: int = 0
    """A first token that comes later than this after the request is of no use; 0: it always is."""
    counts: bool = True
    """It is one of its tenant's requests a minute, as lines of a batch are not."""


class Caller(msgspec.Struct, frozen=True):
    """Who asks, as the headers tell.  ``key`` None: there are no keys, or it is not a client."""

    tenant: str
    key: KeyConfig | None = None
    believed: bool = False
    """Whether it may name tenants and deadlines."""
    later: bool = False
    """It is the server, for the tenant."""
    klass: str = ""
    """The class that its request is of, whatever that says; empty: what it says."""


class Wire:
    """The rules, ready to be applied."""

    def __init__(self, config: Config, gateway: Gateway | None = None, model: str = "") -> None:
        """``gateway``: whose keys there are; ``model``: what clients call the one that is served."""
        self._gateway = gateway or Gateway(config)
        self._model = model
        wire = self.rules = config.wire
        self._classes = [each.name for each in config.classes]
        self._deadlines = {each.name: each.deadline_ns for each in config.classes}
        self._default = class_of(config, wire.default)
        self._tiers = {tier: class_of(config, klass) for tier, klass in wire.tiers.items()}
        self._ranges = [(each.at_least, class_of(config, each.klass)) for each in reversed(wire.priorities)]
        self._secret = secrets.token_bytes(32)

    def standing(self, says: Says, headers: Mapping[str, str]) -> Standing:
        """Raises ``RequestError`` with the field or header that says something unknown, or what the key may not."""
        heads = _heads(headers)
        caller = self._caller(heads)
        if not self._opens(caller):
            raise _not_allowed("model", self._model, caller.key.models if caller.key is not None else (), "model")
        tier, klass = self._tier(says.service_tier)
        priority = says.priority or 0
        ranged = next((name for least, name in self._ranges if priority >= least), klass)
        named = self._class(heads)
        wanted = caller.klass or named or ranged
        if caller.key is not None and caller.key.classes and wanted not in caller.key.classes:
            if named or ranged != self._default:
                field = self.rules.class_header if named else "service_tier" if ranged == klass else "priority"
                raise _not_allowed("class", wanted, caller.key.classes, field)
            wanted = caller.key.classes[0]
        return Standing(
            klass=wanted,
            tenant=caller.tenant,
            tier="default" if named or ranged != klass else tier,
            priority=priority,
            program=self._program(says, heads, caller.tenant),
            deadline_ns=self._deadline_ns(heads, caller, wanted),
            counts=not caller.later,
        )

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who asks; raises ``RequestError`` if that is nobody who may."""
        return self._caller(_heads(headers))

    def _caller(self, heads: _Heads) -> Caller:
        said = heads.said if HEADER in heads.said else {}
        tenant, name = tenant_in(said), key_in(said)
        if tenant:
            return Caller(tenant, later=True, klass=class_in(said))
        if not self._gateway.keyed:
            return Caller(self._named_tenant(heads) or "default", believed=True)
        key = self._gateway.ring.named(name, time.time_ns())
        if key is None:
            raise unauthorised("the key is no longer valid")
        named = self._named_tenant(heads) if key.trusted else ""
        return Caller(named or key.tenant, key, believed=key.trusted)

    def tenant(self, headers: Mapping[str, str]) -> str:
        """Whose a request is, and what it leaves behind: stored answers, files, batches."""
        return self.caller(headers).tenant

    def opens(self, headers: Mapping[str, str]) -> bool:
        """Whether whoever asks may use the model that is served."""
        return self._opens(self.caller(headers))

    def check_later(self, headers: Mapping[str, str], klass: str) -> None:
        """Whether the server may do work of that class for whoever asks, when no key is shown any more.

        Raises ``RequestError`` for what the key may not have done now.
        """
        caller = self.caller(headers)
        if not self._opens(caller):
            raise _not_allowed("model", self._model, caller.key.models if caller.key is not None else (), "model")
        if caller.key is not None and caller.key.classes and klass not in caller.key.classes:
            raise _not_allowed("class", klass, caller.key.classes, "")

    def _opens(self, caller: Caller) -> bool:
        return caller.key is None or not caller.key.models or self._model in caller.key.models

    def _tier(self, asked: str | None) -> tuple[str, str]:
        """The tier that it is served as, and its class."""
        if asked in self._tiers:
            return "priority" if asked == "fast" else asked, self._tiers[asked]
        if asked is not None and asked not in TIERS:
            known = ", ".join(dict.fromkeys((*TIERS, *self._tiers)))
            raise RequestError(f"there is no tier {asked!r} here; known: {known}", field="service_tier")
        return "default", self._default

    def _class(self, heads: _Heads) -> str:
        name = heads.one(self.rules.class_header)
        if name and name not in self._classes:
            known = ", ".join(sorted(self._classes))
            raise RequestError(f"there is no class {name[:64]!r} here; known: {known}", field=self.rules.class_header)
        return name

    def _named_tenant(self, heads: _Heads) -> str:
        header = self.rules.tenant_header
        name = heads.one(header)
        if name and not _TENANT.fullmatch(name):
            raise RequestError("a tenant is up to 64 letters, digits and _ . : @ / -", field=header)
        return name

    def _deadline_ns(self, heads: _Heads, caller: Caller, klass: str) -> int:
        header = self.rules.deadline_header
        said = heads.one(header) if caller.believed else ""
        if not said:
            return self._deadlines[klass]
        if not _MILLISECONDS.fullmatch(said):
            raise RequestError("must be a whole number of milliseconds, at least 1", field=header)
        return int(said) * NS_PER_MS

    def _program(self, says: Says, heads: _Heads, tenant: str) -> str:
        """A digest: names of people and conversations are nothing for a journal, and of no tenant but the one's own."""
        rules = self.rules
        given = heads.one(rules.program_header)
        for field in rules.program_fields if not given else ():
            given = getattr(says, field) or ""
            if given:
                break
        if not given:
            return ""
        return blake2b(given.encode(), key=salt_of(tenant, self._secret), digest_size=8).hexdigest()


class _Heads(msgspec.Struct, frozen=True):
    """The headers of a request, by name in lower case, looked through once."""

    said: dict[str, str]
    twice: Collection[str]

    def one(self, name: str) -> str:
        """What the header says, empty if it is not there.  Said twice it is refused: the client's may be one of them,
        where a gateway adds its own, and neither may be the one that is believed.
        """
        wanted = name.lower()
        if wanted in self.twice and wanted:
            raise RequestError("is given twice", field=name)
        return self.said.get(wanted, "") if wanted else ""


def _heads(headers: Mapping[str, str]) -> _Heads:
    pairs = [(key.lower(), value) for key, value in headers.items()]
    said = dict(pairs)
    if len(said) == len(pairs):
        return _Heads(said, ())
    names = [key for key, _ in pairs]
    return _Heads(said, {key for key in names if names.count(key) > 1})


def _not_allowed(what: str, wanted: str, allowed: Collection[str], field: str) -> RequestError:
    known = ", ".join(allowed)
    return RequestError(
        f"this key may not use the {what} {wanted[:64]!r}, but: {known}",
        field=field,
        status=403,
        code=f"{what}_not_allowed",
    )
