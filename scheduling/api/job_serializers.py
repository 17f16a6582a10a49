"""What REST accepts for jobs, from the definitions in `scheduling.job_fields`.

Rules beyond types and sizes are in `services.jobs.validation.job_spec`.
"""

from drf_spectacular.utils import (
    OpenApiExample,
    extend_schema_serializer,
)

from scheduling.api.document_serializers import given, input_of, made
from scheduling.job_fields.definition import MAX_POD_SETS, JobDocument, PodSetDocument
from scheduling.job_fields.parts import fields_of
from scheduling.services.jobs.resizing import SIZES
from tenants.api.fields import List, Text

_OF_POD_SET, _OF_JOB = fields_of(PodSetDocument), fields_of(JobDocument)


def _gpu_type() -> Text:
    return Text(max_length=63, required=False, allow_null=True)


PodSetInput = input_of("PodSetInput", PodSetDocument, gpu_type=_gpu_type())

JobInput = extend_schema_serializer(
    examples=[
        OpenApiExample(
            "Eight GPUs on one node",
            value={"name": "hello", "tenant": "vision", "gpu_type": "H100", "gpus": 8},
            request_only=True,
        ),
        OpenApiExample(
            "A gang of 64 GPUs within one leaf",
            value={
                "name": "pretrain",
                "tenant": "vision",
                "declared_s": 86400,
                "pod_sets": [
                    {
                        "name": "worker",
                        "count": 8,
                        "gpu_type": "H100",
                        "gpus": 8,
                        "preferred_level": "leaf",
                        "image": "registry.example/pretrain:1",
                        "command": ["python", "train.py"],
                    }
                ],
            },
            request_only=True,
        ),
    ]
)(
    input_of(
        "JobInput",
        JobDocument,
        """A job, or with `array` many identical ones. If all pods are alike, their fields go here,
    otherwise in `pod_sets`. Network levels given here then apply to all pod sets together. Labels
    and annotations must not begin with `kant.io/`.""",
        **{name: given(field) for name, field in _OF_POD_SET.items() if name not in _OF_JOB},
        gpu_type=_gpu_type(),
        replicas=given(_OF_POD_SET["count"]),
        pod_sets=List(
            child=PodSetInput(), max_length=MAX_POD_SETS, required=False, allow_null=True
        ),
    )
)

PodSetSize = made(
    "PodSetSize",
    """New size of a pod set: its name, its number of pods, and for a gang the fewest pods that it
    can run with (null = all).""",
    {
        "name": Text(max_length=63),
        **{name: given(_OF_POD_SET[name], allow_null=_OF_POD_SET[name].optional) for name in SIZES},
    },
)

JobChange = made(
    "JobChange",
    """Changes of a waiting job; fields that are left out keep their values. For a job that has
    started, only `run_limit_s`, `declared_s` and, unless it is a gang that is not elastic,
    `pod_sets`. For an array, everything except `pod_sets`.""",
    {
        **{n: given(f, allow_null=f.optional) for n, f in _OF_JOB.items() if f.change},
        "pod_sets": List(
            child=PodSetSize(),
            allow_empty=False,
            max_length=MAX_POD_SETS,
            required=False,
            help_text="New numbers of pods, by pod set.",
        ),
    },
)
