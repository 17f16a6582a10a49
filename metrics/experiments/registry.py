"""All studies by name."""

from metrics.experiments import (
    eta,
    fairness,
    faults,
    fidelity,
    openb_fgd,
    paper_backfill,
    paper_binpack,
    paper_incremental,
    paper_inference,
    scale,
    walltime,
)
from metrics.experiments.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        openb_fgd.STUDY,
        paper_binpack.STUDY,
        paper_backfill.STUDY,
        paper_inference.STUDY,
        paper_incremental.STUDY,
        walltime.STUDY,
        scale.STUDY,
        faults.STUDY,
        fairness.STUDY,
        fidelity.STUDY,
        eta.STUDY,
    )
}
