"""The experiments: six published figures, each reproduced or not.

python -m stepwell.examples.experiments.run --all
python -m stepwell.examples.experiments.run stall_free fair_tenants --quick
"""

from __future__ import annotations

from stepwell.examples.experiments import (
    continuous_batching,
    fair_tenants,
    feedback_queue,
    paged_attention,
    short_first,
    stall_free,
)
from stepwell.examples.experiments.show import main

EXPERIMENTS = {
    each.EXPERIMENT.name: each.EXPERIMENT
    for each in (paged_attention, continuous_batching, stall_free, fair_tenants, short_first, feedback_queue)
}

if __name__ == "__main__":
    main(list(EXPERIMENTS.values()), __doc__)
