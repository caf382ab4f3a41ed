"""A comparison on a Ray cluster of two nodes (on this machine) gives the bytes that one process gives."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.core.errors import UserError
from stepwell.sim.compare import on_ray
from stepwell.sim.compare.result import to_json
from stepwell.sim.compare.run import compare

PROGRAM = """
import sys
from ray.cluster_utils import Cluster
from stepwell.sim.compare.result import to_json
from stepwell.sim.compare.run import compare

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
try:
    cluster.wait_for_nodes()
    found = compare(sys.argv[1], on=f"ray:{cluster.address}")
    import ray
    assert not ray.is_initialized()
    open(sys.argv[2], "wb").write(to_json(found))
finally:
    cluster.shutdown()
"""
"""In a process of its own: Ray's clean-up at the end is not ours to mend."""

SCENARIO = """\
[workload.settings]
count = 30
[compare]
policies = ["fcfs", "chat-batch", "nobody.py:Mine"]
rates = [20.0, 200.0]
seeds = 2
slo_share = 0.5
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'stepwell[ray]'")
def test_a_cluster_of_two_nodes_gives_the_same_bytes(tmp_path: Path) -> None:
    """One policy breaks a rule, so a failure is told alike too."""
    (tmp_path / "nobody.py").write_text(
        "from stepwell.core.plan import StepPlan\nfrom stepwell.policies.fcfs import Fcfs\n"
        "class Mine(Fcfs):\n    def plan(self, view):\n        return StepPlan(admit=[(999, 1)])\n"
    )
    file = tmp_path / "s.toml"
    file.write_text(SCENARIO)
    out = tmp_path / "out.json"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(file), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    here = compare(file, jobs=1)
    assert len(here.failures) == 4
    assert out.read_bytes() == to_json(here)


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'stepwell\[ray\]'"):
        on_ray.on_ray()
