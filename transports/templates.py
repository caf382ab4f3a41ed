"""Chat templates: messages become a prompt.  The one place in the house where a template is rendered.

- **A template is a stranger's program.**  It runs in a process of its own (``template_worker.py``): jinja2's immutable
  sandbox, with processor time, memory and output bounded from outside.  A template that goes over a limit costs its
  process, which is replaced.  Templates come from the model or the configuration, never from a client.
- **Special tokens are honoured where the template writes them, and nowhere else.**  A name such as ``<|im_end|>``
  inside a client's text is text.  Before rendering, a mark (a Unicode noncharacter that occurs in no text at hand) is
  put inside each such name; in the result, what lies between two special tokens and holds a mark is encoded as plain
  text, without the marks.  A prompt without marks, the usual one, is encoded as a whole, as the model's makers do.
- **BOS** (``with_bos``): exactly one if the template or the tokenizer asks for it, none if neither does.
- **Without a template** a model whose tokenizer has ``<|im_start|>`` and ``<|im_end|>`` gets ChatML, with a warning;
  any other cannot chat: the configuration must name a template.
- **Messages**: roles ``system``, ``developer`` (given to the template as ``system``), ``user``, ``assistant``,
  ``tool``.  Content is text, or parts of text, which are joined; null is empty text, and only an assistant may say it.
  Arguments of tool calls in JSON text are given to the template as objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from stepwell.core.errors import UserError
from stepwell.core.protocols import Tokenizer
from stepwell.transports.template_process import TemplateLimits, TemplatePool

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""For models that bring no template and know its two tokens."""

ROLES = ("system", "developer", "user", "assistant", "tool")
MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Noncharacters: Unicode keeps them for a program's own use, they are no text."""

MOST_DEPTH = 64
"""Of lists and objects inside a message or an argument."""


class ChatTokenizer(Tokenizer, Protocol):
    """What chatting asks of a tokenizer beyond ``Tokenizer``."""

    @property
    def chat_template(self) -> str:
        """The model's own, or empty."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, int]: ...
    @property
    def bos_token(self) -> str: ...
    @property
    def eos_token(self) -> str: ...
    def with_bos(self, tokens: Sequence[int]) -> list[int]: ...


class Segment(NamedTuple):
    """A stretch of a prompt; names of special tokens in it are honoured or they are text."""

    text: str
    special: bool


class ChatPrompt:
    """Renders one template for one tokenizer.  Blocks while it does, so call it in a thread; any number may.

    ``template`` empty: the model's own, or the default.  Raises ``UserError`` if there is none or it does not compile.
    """

    def __init__(self, tokenizer: ChatTokenizer, template: str = "", limits: TemplateLimits | None = None) -> None:
        self.warnings: tuple[str, ...] = ()
        self.template = template or tokenizer.chat_template
        if not self.template:
            if not {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.special_tokens):
                raise UserError("the model has none and one must be configured", field="chat_template")
            self.template = CHATML
            self.warnings = ("the model has no chat template; ChatML is used",)
        self._tokenizer = tokenizer
        # Of one letter there are none in use, and a mark could not be put inside.
        names = sorted((name for name in tokenizer.special_tokens if len(name) > 1), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._pool = TemplatePool(self.template, limits or TemplateLimits())

    def __call__(self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> list[int]:
        """Token ids of the prompt that asks for the next answer; ``arguments`` are the template's, and ``tools``."""
        return self.encode(self.render(messages, arguments=arguments))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> list[Segment]:
        """The prompt as text.  Raises ``UserError``: a bad message, or the template refuses, fails or goes too far."""
        own: dict[str, Any] = {
            "bos_token": self._tokenizer.bos_token,
            "eos_token": self._tokenizer.eos_token,
            "add_generation_prompt": add_generation_prompt,
            "documents": None,
        }
        for name in (*own, "messages"):
            if name in (arguments or {}):
                raise UserError(f"{name!r} is not for clients to set", field="chat_template_kwargs")
        given: dict[str, Any] = {"tools": tools, **(arguments or {}), "messages": check_messages(messages)}
        seen: list[str] = [self.template]

        def look(text: str) -> str:
            seen.extend(_MARK.findall(text))
            return text

        _each_text(given, look)
        mark = next((each for each in MARKS if not any(each in text for text in seen)), "")
        if not mark:
            raise UserError("holds all of Unicode's noncharacters U+FDD0 to U+FDEF", field="messages")
        broken = _each_text(given, lambda text: self._broken(text, mark))
        return self._segments(self._pool.render({**broken, **own}), mark)

    def encode(self, prompt: Sequence[Segment]) -> list[int]:
        """Token ids, with BOS as the rule says."""
        encode = self._tokenizer.encode
        return self._tokenizer.with_bos([id for each in prompt for id in encode(each.text, special=each.special)])

    def close(self) -> None:
        """End the processes; rendering again starts new ones."""
        self._pool.close()

    def _broken(self, text: str, mark: str) -> str:
        """With a mark inside the name of every special token, overlapping ones too."""
        while self._names.search(text):
            text = self._names.sub(lambda found: found[0][0] + mark + found[0][1:], text)
        return text

    def _segments(self, text: str, mark: str) -> list[Segment]:
        if mark not in text:
            return [Segment(text, special=True)]
        made: list[Segment] = []
        whole, at = "", 0
        for found in [*self._names.finditer(text), None]:
            between = text[at : found.start() if found else len(text)]
            if mark in between:
                made += [Segment(whole, special=True), Segment(between.replace(mark, ""), special=False)]
                whole = ""
            else:
                whole += between
            if found:
                whole += found[0]
                at = found.end()
        return [each for each in [*made, Segment(whole, special=True)] if each.text]


_MARK = re.compile(f"[{MARKS[0]}-{MARKS[-1]}]")


def _each_text(value: Any, change: Callable[[str], str], field: str = "messages", depth: int = 0) -> Any:
    """A copy with every text in it changed, keys included."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UserError("holds half of a surrogate pair, which is no character", field=field) from None
        return change(value)
    if depth > MOST_DEPTH:
        raise UserError(f"is nested more than {MOST_DEPTH} deep", field=field)
    if isinstance(value, Mapping):
        return {
            _each_text(str(key), change, field): _each_text(each, change, field, depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_each_text(each, change, field, depth + 1) for each in value]
    if isinstance(value, int) and not -1 << 63 <= value < 1 << 63:
        raise UserError("holds a number of more than 64 bits", field=field)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise UserError(f"holds a {type(value).__name__}, which is nothing that JSON has", field=field)


# --------------------------------------------------------------------------------------------------- messages


def check_messages(messages: object, field: str = "messages") -> list[dict[str, Any]]:
    """The messages as templates expect them; raises ``UserError`` with the place named."""
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise UserError("must be a list of at least one message", field=field)
    return [_message(each, f"{field}[{index}]") for index, each in enumerate(messages)]


def _message(message: object, field: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise UserError("must be an object", field=field)
    role = message.get("role")
    if role not in ROLES:
        raise UserError(f"must be one of {', '.join(ROLES)}, not {str(role)[:40]!r}", field=f"{field}.role")
    made = {**message, "role": "system" if role == "developer" else role}
    made["content"] = _content(message.get("content"), role, f"{field}.content")
    if message.get("tool_calls"):
        made["tool_calls"] = _tool_calls(message["tool_calls"], f"{field}.tool_calls")
    return made


def _content(content: object, role: str, field: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return ""
        raise UserError(f"must be text: {role!r} messages say something", field=field)
    if not isinstance(content, Sequence):
        raise UserError("must be text, or a list of parts of text", field=field)
    texts: list[str] = []
    for index, part in enumerate(content):
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (None, None)
        if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            raise UserError("must be a part of type 'text' with a text", field=f"{field}[{index}]")
        texts.append(text)
    return "".join(texts)


def _tool_calls(calls: object, field: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise UserError("must be a list", field=field)
    made: list[dict[str, Any]] = []
    for index, call in enumerate(calls):
        if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
            raise UserError("must be an object with a function", field=f"{field}[{index}]")
        function = dict(call["function"])
        if isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = json.loads(function["arguments"] or "{}")
            except (ValueError, RecursionError):
                raise UserError("must be JSON", field=f"{field}[{index}].function.arguments") from None
        made.append({**call, "function": function})
    return made
