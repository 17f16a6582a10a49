"""All studies by name."""

from metrics.experiments import (
    defrag,
    eta,
    fairness,
    faults,
    fidelity,
    learned,
    openb_fgd,
    scale,
    walltime,
)
from metrics.experiments.paper import backfill, binpack, incremental, inference
from metrics.experiments.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        openb_fgd.STUDY,
        binpack.STUDY,
        backfill.STUDY,
        inference.STUDY,
        incremental.STUDY,
        walltime.STUDY,
        learned.STUDY,
        scale.STUDY,
        faults.STUDY,
        fairness.STUDY,
        fidelity.STUDY,
        eta.STUDY,
        defrag.STUDY,
    )
}
