"""``stepwell serve`` on broken models: status 2 before the port opens, and one line that says where what is wrong."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `model`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from stepwell.__main__ import main  # noqa: E402
from stepwell.tests.backends.speaking import write_speaking_folder, write_speaking_gguf  # noqa: E402

PATIENCE_S = 60
SMALL = """--set memory.pages=64 --set memory.host_pages=0 --set scheduler.token_budget=64
    --set scheduler.running_limit=16""".split()
SHARD = "model-00002-of-00003.safetensors"
NORM = "model.norm.weight"


def change_tensor(path: Path, change: Callable[[Tensor], Tensor], name: str = NORM) -> Path:
    """A folder in one file, with one tensor changed."""
    write_speaking_folder(path)
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {name: change(tensors[name]).contiguous()}, path / "model.safetensors")
    return path


def missing_shard(path: Path) -> Path:
    (write_speaking_folder(path, shards=3) / SHARD).unlink()
    return path


def short_shard(path: Path) -> Path:
    shard = write_speaking_folder(path, shards=3) / SHARD
    os.truncate(shard, shard.stat().st_size - 1024)
    return path


def missing_tensor(path: Path) -> Path:
    tensors = load_file(write_speaking_folder(path) / "model.safetensors")
    save_file({name: each for name, each in tensors.items() if name != NORM}, path / "model.safetensors")
    return path


def missing_tokenizer(path: Path) -> Path:
    (write_speaking_folder(path) / "tokenizer.json").unlink()
    return path


def changed_json(name: str, **changes: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        file = write_speaking_folder(path) / name
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
        return path

    return make


def short_file(path: Path) -> Path:
    file = write_speaking_gguf(path.with_suffix(".gguf"))
    os.truncate(file, file.stat().st_size - 1024)
    return file


def overwritten(path: Path) -> Path:
    file = write_speaking_gguf(path.with_suffix(".gguf"))
    with file.open("r+b") as raw:
        raw.write(b"PK\x03\x04")
    return file


def text_file(path: Path) -> Path:
    file = path.with_suffix(".gguf")
    file.write_text("version https://git-lfs.github.com/spec/v1\n")
    return file


Broken = tuple[Callable[[Path], Path], tuple[str, ...]]
BROKEN: dict[str, Broken] = {
    "a shard is missing": (missing_shard, (SHARD, "is missing", "7 tensors")),
    "a shard is cut short": (short_shard, (SHARD, "tensor 'model.", "cut short?")),
    "a tensor is missing": (missing_tensor, (f"tensor {NORM!r} [64] is missing",)),
    "wrong type": (
        lambda path: change_tensor(path, lambda it: it.to(torch.int32)),
        ("model.safetensors", f"tensor {NORM!r} has type 'I32'", "F64, F32, F16, BF16"),
    ),
    "wrong shape": (
        lambda path: change_tensor(path, lambda it: torch.cat([it, it])),
        ("model.safetensors", f"tensor {NORM!r} has shape [128], expected [64]"),
    ),
    "no numbers": (
        lambda path: change_tensor(path, lambda it: it * torch.nan),
        ("model.safetensors", f"tensor {NORM!r} holds numbers that are not finite"),
    ),
    "unknown architecture": (
        changed_json("config.json", architectures=["GPT2LMHeadModel"]),
        ("config.json", "'GPT2LMHeadModel'", "LlamaForCausalLM"),
    ),
    "no such activation": (changed_json("config.json", hidden_act="gelu"), ("config.json", "hidden_act 'gelu'")),
    "end token out of range": (changed_json("config.json", eos_token_id=263), ("config.json: eos_token_id", "263")),
    "no tokenizer": (
        missing_tokenizer,
        ("tokenizer.json", "is missing"),
    ),
    "a file is cut short": (
        short_file,
        ("model.gguf", "'blk.1.ffn_down.weight' takes 24576 bytes at offset 295232, the file has 319040", "cut short?"),
    ),
    "a file is overwritten": (overwritten, ("model.gguf", "does not begin with GGUF")),
    "a pointer in a file's place": (text_file, ("model.gguf", "does not begin with GGUF")),
    "unknown pre-tokenizer": (
        lambda path: write_speaking_gguf(path.with_suffix(".gguf"), pre="klingon"),
        ("model.gguf", "tokenizer.ggml.pre", "'klingon' is not known", "llama-bpe"),
    ),
    "no merges": (
        lambda path: write_speaking_gguf(path.with_suffix(".gguf"), merges=None),
        ("model.gguf", "tokenizer.ggml.merges", "is missing"),
    ),
    "no such file": (lambda path: path, ("model: no such file or folder",)),
}


def error_of(text: str) -> str:
    """The one line of stderr, beside notes."""
    (line,) = [line for line in text.splitlines() if not line.startswith("note: ")]
    return line


@pytest.mark.parametrize("what", BROKEN)
def test_ml_1_ml_4_a_broken_model_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    make, words = BROKEN[what]
    path = make(tmp_path / "model")
    capsys.readouterr()
    assert main(["serve", "--port", "0", "--model", str(path), *SMALL]) == 2
    told = capsys.readouterr()
    assert "serving" not in told.out
    line = error_of(told.err)
    for word in (*words, "model.path", str(path)):
        assert word in line, line


def test_too_little_memory_is_said_with_what_there_is_and_what_would_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_speaking_gguf(tmp_path / "model.gguf")
    much = ("--set", "memory.pages=1000000000", "--set", "memory.host_pages=0")
    assert main(["serve", "--port", "0", "--model", str(path), *SMALL, *much]) == 2
    line = error_of(capsys.readouterr().err)
    for word in ("memory.pages", "MiB of memory do not hold", "of weights", "1000000000 pages", "pages would fit"):
        assert word in line, line


def test_in_a_process_of_its_own_nobody_could_connect(tmp_path: Path) -> None:
    """The port is taken, so that two servers do not both load a model, but it does not listen."""
    path = missing_shard(tmp_path / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "stepwell", "serve", "--port", str(port), "--model", str(path), *SMALL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    refusals = 0
    while process.poll() is None:
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))
        refusals += 1
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "serving" not in out
    assert SHARD in error_of(err)
    assert refusals
