"""Trace readers: real files, every format, and what each reader says of a wrong row."""

import lzma

import pytest
from django.conf import settings

from scheduling.engine.states import JobState
from scheduling.engine.types import JobKind
from scheduling.simulator.traces import BadRows, TraceFormatError, TraceJob, arrivals, jobs_of
from scheduling.simulator.traces.jobs import pod_sets
from tests.requirements import missing

HELIOS = "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,duration\n"
PHILLY = "jobid,vc,status,submitted_time,run_time,gpus\n"
ACME = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,duration\n"
SWF = "; Version: 2\n1 0 5 100 4 -1 -1 8 3600 -1 1 3 2 -1 1 -1 -1 -1\n"
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\n"
)
OWN_PRIORITY = "id,submitted_at,duration_s,gpus,pods,priority\n"
ITP = "job_id,submission_time,duration,num_gpu\n"
OWN_JSON = '{"id": "a", "submitted_at": 0, "duration_s": 1, "gpus": 1, "pods": 1, %s}\n'
OWN = "id,submitted_at,duration_s,gpus,pods,tenant,kind,after\n"


def read(text, **more):
    return list(jobs_of(text.splitlines(keepends=True), BadRows(), **more))


def test_a_real_itp_trace():
    path = settings.KANT_TRACES / "itp" / "cluster02.csv.xz"
    if not path.exists():
        missing(str(path), "fetch the public traces and set KANT_TRACES")
    with lzma.open(path, "rt") as lines:
        jobs = list(jobs_of(lines, BadRows()))
    assert len(jobs) == 5778
    assert jobs[0] == TraceJob("f60b9881-76f3-6fc7-d009-6b2a00419afc", 5010, 1265, 1)
    made = list(arrivals(jobs, gpu_models=("V100",), per_node=8))
    assert made[0].submitted_at == 0
    assert sum(a.job.gpu_milli for a in made) == sum(j.gpus for j in jobs) * 1000


@pytest.mark.parametrize(
    ("text", "job"),
    [
        (
            OPENB + "p1,6000,12288,1,460,T4|P100,LS,Running,100,400,150\n",
            TraceJob(
                "p1",
                100,
                250,
                0.46,
                pods=1,
                gpu_models=("P100", "T4"),
                cpu_milli=6000,
                memory_mib=12288,
            ),
        ),
        (
            HELIOS + "7,u1,vcA,x,16,32,2,FAILED,2020-04-01 00:01:40,60\n",
            TraceJob("7", 1585699300, 60, 16, tenant="vca", ends=JobState.FAILED, user="u1"),
        ),
        (
            PHILLY + "a1,vc1,Pass,2017-10-03 00:00:00,90,2\n",
            TraceJob("a1", 1506988800, 90, 2, tenant="vc1"),
        ),
        (
            ACME + "k1,u,8,64,1024,Pretrain,CANCELLED,2023-05-01 00:00:00+08:00,5\n",
            TraceJob("k1", 1682870400, 5, 64, tenant="pretrain", ends=JobState.CANCELLED, user="u"),
        ),
        (SWF, TraceJob("1", 0, 100, 8, tenant="group-2", declared_s=3600, user="user-3")),
        (
            SWF.replace(" 3 2 -1 1 ", " -1 2 -1 1 "),
            TraceJob("1", 0, 100, 8, tenant="group-2", declared_s=3600),
        ),
        (
            "user," + PHILLY + "eve,a1,vc1,Pass,2017-10-03 00:00:00,90,2\n",
            TraceJob("a1", 1506988800, 90, 2, tenant="vc1", user="eve"),
        ),
        (
            "user," + OWN + "eve,x,1.5,10,8,4,vision,,\n",
            TraceJob("x", 1.5, 10, 32, pods=4, tenant="vision", user="eve"),
        ),
        (
            OWN + "x,1.5,10,8,4,vision,inference,a b\n",
            TraceJob(
                "x", 1.5, 10, 32, pods=4, tenant="vision", kind=JobKind.INFERENCE, after=("a", "b")
            ),
        ),
        (
            '{"id": "x", "submitted_at": 0, "duration_s": 5, "gpus": 0.5, "pods": 1, '
            '"ends": "FAILED", "after": ["a"], "user": "eve"}\n',
            TraceJob("x", 0, 5, 0.5, pods=1, ends=JobState.FAILED, after=("a",), user="eve"),
        ),
    ],
    ids=[
        "openb",
        "helios",
        "philly",
        "acme",
        "swf",
        "swf, user not known",
        "philly with users",
        "kant-csv with users",
        "kant-csv",
        "kant-jsonl",
    ],
)
def test_each_format_is_recognised_and_read(text, job):
    assert read(text) == [job]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1: the trace is empty"),
        ("a,b,c\n1,2,3\n", "line 1: no known trace begins like this"),
        (
            "id,submitted_at,duration_s,gpus\n",
            "the header lacks pods of the format kant-csv",
        ),
        ("duration_s,id,user,gpus\n", "lacks submitted_at, pods of the format kant-csv"),
        ("job_id,submission_time,num_gpu\n", "line 1: the header lacks duration of the format itp"),
        ("job_id,submission_time,duration,num_gpu\nx,1,2\n", "line 2, column num_gpu: is missing"),
        ("job_id,submission_time,duration,num_gpu\nx,1,-2,1\n", "line 2, column duration: is '-2'"),
        ("job_id,submission_time,duration,num_gpu\nx,1,nan,1\n", "line 2, column duration"),
        ("job_id,submission_time,duration,num_gpu\nx,1,1,1.5\n", "column num_gpu: is '1.5'"),
        (HELIOS + "7,u,v,x,1,1,1,ODD,2020-04-01 00:00:00,1\n", "column state: is 'ODD'"),
        (HELIOS + "7,u,v,x,1,1,1,FAILED,yesterday,1\n", "column submit_time: is 'yesterday'"),
        (SWF + "1 2 3\n", "line 3: has 3 fields"),
        (OWN + "x,0,1,1.5,1,,,\n", "column gpus: is '1.5'"),
        (OWN + "x,0,1,1,0,,,\n", "column pods: is '0'"),
        ('{"id": 1, "speed": 2}\n', "key speed: is unknown"),
        ('{"id": \n', "line 1: is not JSON (Expecting value at character 9"),
        (
            OWN_JSON % '"gpus": 2',
            "line 1: is not JSON .the name 'gpus' appears twice in one object",
        ),
        (
            OWN_JSON % '"tenant": "a\\u0000"',
            "column tenant: is 'a.x00', expected a text without",
        ),
        (OWN_JSON % '"user": "\\ud800"', "column user: is '.ud800', expected a text without NUL"),
        (OWN_JSON % f'"priority": {"9" * 5000}', "line 1, column priority: is '99999"),
        (OWN_JSON % '"priority": NaN', "line 1, column priority: is 'NaN'"),
        (OWN + "x\0,0,1,1,1,,,\n", "column id: is 'x.x00', expected a text without NUL"),
        ("{}\n[1]\n", "line 1, column"),
        (ITP + "x,1_0,1,1\n", "line 2, column submission_time: is '1_0'"),
        (
            ITP + "x,1,1e12,1\n",
            "column duration: is '1e12', expected seconds from 0 to 360,000,000",
        ),
        (
            ITP + "x,1,1,1e18\n",
            "column num_gpu: is '1e18', expected a whole number from 0 to 10,000",
        ),
        (
            ITP + "x,1,1,1\ny,1e12,1,1\n",
            "line 3, column submission_time: is '1e12', expected a time within 100,000 hours of",
        ),
        (OWN_PRIORITY + "x,0,1,1,1,1e30\n", "column priority: is '1e30'"),
        (OWN_PRIORITY + "x,0,1,1,1,1.5\n", "column priority: is '1.5', expected a whole number"),
        (OWN + "x,0,1,8,9999999,,,\n", "column gpus: is '8', expected 0.001 and more, at most"),
        (OWN + "x,0,1,0.0001,1,,,\n", "column gpus: is '0.0001', expected 0.001 and more"),
        ('{"id": ' + "[" * 100_000, "line 1: is nested far too deeply"),
        (
            SWF.replace("1 3 2", "9 3 2"),
            "column status: is '9', expected a whole number from -1 to 5",
        ),
        (HELIOS + "7,u,v,x,1,1,1,COMPLETED,2020-04-01 00:00:00,\n", "column duration: is ''"),
        (HELIOS + "7,u,v,x,1,1,1,FAILED,2020-04-31T00:00:00,1\n", "is '2020-04-31T00:00:00'"),
        (OPENB + "p,1,1,1,1000,,LS,Running,400,100,\n", "column deletion_time: is '100'"),
        (OPENB + "p,1,1,1,1000,,LS,Running,0,100,400\n", "column deletion_time: is '100'"),
        (OPENB + "p,1,1,257,1000,,LS,Running,0,100,0\n", "column num_gpu: is '257'"),
        (ITP + "a,0,1000,4\na,10,1000,4\n", "line 3, column job_id: 'a' appears twice"),
        (OWN + "x,0,1,1,1,,,\nx,1,1,1,1,,,\n", "line 3, column id: 'x' appears twice"),
        (SWF + SWF.splitlines()[1], "line 3, column job: '1' appears twice"),
        (OWN + "x,0,1,1,1,,,a x\n", "line 2, column after: is 'a x', expected other jobs"),
        (SWF.replace("-1 -1\n", "1 -1\n"), "line 2, column preceding: is '1', expected other"),
    ],
)
def test_a_wrong_row_is_named(text, error):
    with pytest.raises(TraceFormatError, match=error.replace("(", r"\(")):
        read(text)


def test_an_unknown_format_name():
    with pytest.raises(TraceFormatError, match="'slurm' is no trace format; known are itp"):
        read("x\n", format_name="slurm")


def test_wrong_rows_are_counted_where_asked():
    bad = BadRows(skip=True)
    text = "job_id,submission_time,duration,num_gpu\na,1,1,1\nb,x,1,1\nc,2,1,1\n"
    jobs = list(jobs_of(text.splitlines(keepends=True), bad))
    assert [j.id for j in jobs] == ["a", "c"]
    assert bad.count == 1
    assert "line 3, column submission_time" in bad.first[0]


def test_a_job_that_stands_twice_is_counted_where_asked():
    bad = BadRows(skip=True)
    text = ITP + "a,1,1,1\na,2,1,1\nb,3,1,1\n"
    jobs = list(jobs_of(text.splitlines(keepends=True), bad))
    assert [(j.id, j.submitted_at) for j in jobs] == [("a", 1), ("b", 3)]
    assert bad.first == ["line 3, column job_id: 'a' appears twice"]


def test_partial_executions_have_the_number_of_their_job():
    whole = SWF.splitlines(keepends=True)[1]
    parts = [whole.replace(" -1 1 3 2 ", f" -1 {status} 3 2 ") for status in (2, 3, 4)]
    assert read("".join([*parts, whole])) == read(SWF)


@pytest.mark.parametrize(
    "text",
    [
        ITP + "\na,1,2,4\n  \n,,,\n",
        "\n \r\n" + ITP + "a,1,2,4\n",
        '"job_id","submission_time","duration","num_gpu"\n"a","1","2","4"\n',
    ],
    ids=["blank rows", "blank lines before the header", "quotes"],
)
def test_what_else_a_csv_may_look_like(text):
    assert read(text) == [TraceJob("a", 1, 2, 4)]


def test_lines_are_counted_from_the_start_of_the_file():
    with pytest.raises(TraceFormatError, match="line 4, column duration"):
        read("\n" + ITP + "\na,1,x,4\n")


def test_a_quote_that_is_not_closed_names_the_line_it_stands_on():
    rest = "".join(f"j{i},1,1,1\n" for i in range(20_000))
    with pytest.raises(TraceFormatError, match=r"line 3: .*; is a quote not closed\?"):
        read(ITP + 'a,1,1,1\nb,1,1,"1\n' + rest)


@pytest.mark.parametrize(
    ("time", "at"),
    [
        ("2020-04-01 00:00:10", 1585699210),
        ("2020-04-01T00:00:10Z", 1585699210),
        ("2020-04-01T08:00:10+08:00", 1585699210),
        ("2020-04-01 00:00:10.500", 1585699210.5),
        ("1585699210", 1585699210),
        ("20200401", 20200401),
    ],
)
def test_times_of_a_trace(time, at):
    (job,) = read(HELIOS + f"7,u,v,x,1,1,1,FAILED,{time},1\n")
    assert job.submitted_at == at


def test_a_tenant_may_be_left_out():
    columns = "job_id,user,gpu_num,state,submit_time,duration\n"
    (job,) = read(columns + "7,u1,16,FAILED,2020-04-01 00:01:40,60\n")
    assert (job.tenant, job.ends) == ("", JobState.FAILED)
    (job,) = read(ACME + "k1,u,8,64,1024,,FAILED,2023-05-01 00:00:00+08:00,5\n")
    assert job.tenant == ""


def test_a_job_that_was_cancelled_while_it_waited_had_no_run():
    columns = "job_id,user,vc,gpu_num,state,submit_time,start_time,duration\n"
    (job,) = read(columns + "7,u1,v,16,CANCELLED,2020-04-01 00:01:40,,\n")
    assert (job.duration_s, job.ends) == (0, JobState.CANCELLED)
    with pytest.raises(TraceFormatError, match="column duration: is ''"):
        read(columns + "7,u1,v,16,CANCELLED,2020-04-01 00:01:40,2020-04-01 00:02:40,\n")


def test_jobs_without_gpus_are_left_out():
    assert read(ITP + "a,1,1,0\n") == []
    assert read(OWN + "x,0,1,0,1,,,\n") == []


@pytest.mark.parametrize(
    ("gpus", "pods", "sets"),
    [
        (0.25, None, [(1, 1, 250)]),
        (4, None, [(1, 4, 1000)]),
        (20, None, [(2, 8, 1000), (1, 4, 1000)]),
        (12, 3, [(3, 4, 1000)]),
    ],
)
def test_pods_of_a_recorded_job(gpus, pods, sets):
    made = pod_sets(TraceJob("x", 0, 1, gpus, pods=pods), ("V100",), 8)
    assert [(s.count, s.gpus, s.gpu_milli) for s in made] == sets


@pytest.mark.parametrize(
    ("named", "accepted"), [(None, ("G2",)), ((), ("G2", "T4")), (("T4",), ("T4",))]
)
def test_which_models_a_job_accepts(named, accepted):
    jobs = [TraceJob("x", 0, 1, 1, gpu_models=named)]
    (made,) = arrivals(jobs, gpu_models=("G2", "T4"), per_node=8)
    assert made.job.pod_sets[0].gpu_models == accepted


def test_the_user_of_a_recorded_job_submits_it():
    jobs = [TraceJob("x", 0, 1, 1, user="eve"), TraceJob("y", 1, 1, 1)]
    made = arrivals(jobs, gpu_models=("G2",), per_node=8)
    assert [arrival.job.user for arrival in made] == ["eve", ""]


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("id,submitted_at,duration_s,gpus,pods,prioritty", "prioritty"),
        ("id,submitted_at,nodes,duration_s,gpus,pods", "nodes"),
        ("id,submitted_at,duration_s,gpus,pods,", ""),
    ],
)
@pytest.mark.parametrize("skip", [False, True])
def test_an_unknown_column_is_refused_and_named_with_the_known_ones(header, name, skip):
    lines = [header, "a,0,1,1,1,1"]
    with pytest.raises(TraceFormatError) as error:
        list(jobs_of(lines, BadRows(skip=skip)))
    assert str(error.value).startswith(
        f"line 1, column {name}: is unknown; known are id, submitted_at"
    )
    assert str(error.value).endswith("ends, after, cluster, cluster_selector, cluster_labels")


def test_a_trace_names_queues():
    text = "id,submitted_at,duration_s,gpus,pods,tenant,queue\na,0,9,1,1,t,night\nb,1,9,1,1,t,\n"
    jobs = read(text)
    assert [job.queue for job in jobs] == ["night", "default"]
    made = arrivals(jobs, gpu_models=("H100",), per_node=8)
    assert [one.job.queue for one in made] == ["night", "default"]
