"""Page keys of the prompts that clients send, made where they hold nobody up."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence

from stepwell.core.page_keys import page_keys, salt_of
from stepwell.core.protocols import KVAllocator

AT_ONCE = 4096
"""Tokens whose keys are made on the event loop: that takes less than half a millisecond."""

Keys = list[list[int]]
InThread = Callable[[Callable[[], Keys]], Awaitable[Keys]]


class PromptKeys:
    """Called with prompts and a tenant.  Salted with a secret of this process: tenants find nothing of each other, and
    nobody can tell from a key, in a journal say, what was asked."""

    def __init__(self, allocator: KVAllocator, in_thread: InThread) -> None:
        self._allocator = allocator
        self._in_thread = in_thread
        self._secret = secrets.token_bytes(32)

    def salt(self, tenant: str, own: str = "") -> bytes:
        """What the keys of a tenant's prompts are made with, and those of the answers.  ``own``: a salt that the client
        gave, so that even its tenant finds nothing of it."""
        return salt_of(f"{tenant}\0{own}" if own else tenant, self._secret)

    async def __call__(self, prompts: Sequence[list[int]], tenant: str, own: str = "") -> Keys:
        """Those of each prompt's full pages (``key_tokens`` each); none where the allocator does not look at them."""
        if not self._allocator.reuses_prefixes:
            return [[] for _ in prompts]
        key_tokens, salt = self._allocator.key_tokens, self.salt(tenant, own)

        def made() -> Keys:
            return [page_keys(prompt, key_tokens, salt) for prompt in prompts]

        return made() if sum(map(len, prompts)) <= AT_ONCE else await self._in_thread(made)
