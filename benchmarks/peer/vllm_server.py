"""vLLM's own OpenAI server, with a device that only takes time; says where it is once it is ready.

    python vllm_server.py --port PORT --model FOLDER …

Runs in an environment that has vLLM and needs nothing of Stepwell.  Arguments are vLLM's own; nothing of vLLM is
replaced but the executor, by ``--distributed-executor-backend``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "PYTHONPATH": str(Path(__file__).resolve().parent),
}
"""For this process and for the engine's, which it starts."""


def greet(url: str) -> None:
    """Once it is healthy."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with direct.open(f"{url}/health", timeout=5):
                break
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    print(f"vLLM at {url}/v1\ntry: it", flush=True)


def main() -> None:
    os.environ.update(SETTINGS)
    from vllm.entrypoints.launchers.api_server.entry import main as serve  # reads the settings when it is imported

    port = sys.argv[sys.argv.index("--port") + 1]
    threading.Thread(target=greet, args=(f"http://127.0.0.1:{port}",), daemon=True).start()
    serve()


if __name__ == "__main__":
    main()
