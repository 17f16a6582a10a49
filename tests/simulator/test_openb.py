"""The openb lists are read strictly: an error names the line and column of the wrong row."""

import lzma

import pytest
from django.conf import settings

from scheduling.simulator.traces.openb import Pod, machines, pods
from scheduling.simulator.traces.table import TraceFormatError
from tests.requirements import missing

NODES = ["sn,cpu_milli,memory_mib,gpu,model", "b,64000,262144,2,P100", "a,96000,393216,8,G2"]
PODS = [
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos",
    "p0,12000,16384,1,1000,,LS",
    "p1,6000,12288,1,460,V100M16|P100,LS",
    "p2,8000,30517,0,0,,BE",
    "p3,8000,30517,4,1000,,BE",
]


def test_machines_come_by_name():
    assert [(m.name, m.gpus, m.gpu_model) for m in machines(NODES)] == [
        ("a", 8, "G2"),
        ("b", 2, "P100"),
    ]


def test_pods_come_in_their_order():
    assert pods(PODS) == [
        Pod(12000, 16384, 1, 1000, ()),
        Pod(6000, 12288, 1, 460, ("P100", "V100M16")),
        Pod(8000, 30517, 0, 0, ()),
        Pod(8000, 30517, 4, 1000, ()),
    ]
    assert pods([line.rsplit(",", 2)[0] for line in PODS])[1].gpu_models == ()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("p,x,1,1,1000,,", "line 6, column cpu_milli: is 'x'"),
        ("p,-1,1,1,1000,,", "line 6, column cpu_milli: is '-1'"),
        ("p,1,1.5,1,1000,,", "line 6, column memory_mib: is '1.5', expected a whole number"),
        ("p,1,1,1,1001,,", "line 6, column gpu_milli: is '1001', expected 1 to 1000"),
        ("p,1,1,1,0,,", "line 6, column gpu_milli: is '0', expected 1 to 1000"),
        ("p,1,1,0,500,,", "line 6, column gpu_milli: is '500', expected 0, as num_gpu is 0"),
        ("p,1,1,2,500,,", "line 6, column gpu_milli: is '500', expected 1000: a share is of"),
        ("p,1,1,nan,1000,,", "line 6, column num_gpu: is 'nan'"),
        ("p,1,1", "line 6, column num_gpu: is missing"),
        (",1,1,1,1000,,", "line 6, column name: is ''"),
        ("p,1,1,1,1000,,LS,more", "line 6: has 8 fields, the header has 7"),
    ],
)
def test_wrong_pods_are_named(row, words):
    with pytest.raises(TraceFormatError) as wrong:
        pods([*PODS, row])
    assert words in str(wrong.value)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*NODES, "a,1,1,1,G2"], "column sn: the name 'a' appears twice"),
        ([*NODES, "c,1,1,many,G2"], "line 4, column gpu: is 'many'"),
        ([*NODES, "c,1,1,1,"], "line 4, column model: is ''"),
        (NODES[:1], "has no machines"),
        (["sn,cpu_milli"], "line 1: column memory_mib is missing"),
        ([], "line 1: column sn is missing"),
    ],
)
def test_wrong_machines_are_named(lines, words):
    with pytest.raises(TraceFormatError) as wrong:
        machines(lines)
    assert words in str(wrong.value)


def test_a_list_without_pods_is_refused():
    with pytest.raises(TraceFormatError, match="has no pods"):
        pods(PODS[:1])


def test_the_published_lists_are_read():
    folder = settings.KANT_TRACES / "openb"
    if not folder.is_dir():
        missing(str(folder), "fetch the public traces and set KANT_TRACES")
    with open(folder / "openb_node_list_gpu_node.csv", encoding="utf-8") as lines:
        found = machines(lines)
    assert (len(found), sum(m.gpus for m in found)) == (1213, 6212)
    with lzma.open(folder / "openb_pod_list_gpuspec20.csv.xz", "rt", encoding="utf-8") as lines:
        listed = pods(lines)
    assert len(listed) == 8152
    assert sum(p.milli for p in listed) == 6_086_800
