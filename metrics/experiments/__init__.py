"""Studies that `manage.py experiment NAME` runs. A study registers itself in STUDIES."""

from metrics.experiments import openb_fgd, paper_backfill, paper_binpack
from metrics.experiments.study import Study

STUDIES: dict[str, Study] = {
    study.name: study for study in (openb_fgd.STUDY, paper_binpack.STUDY, paper_backfill.STUDY)
}
