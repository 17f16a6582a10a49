"""Services of jobs, and what their pods use, as both servers accept them."""

from scheduling.kube.seam import (
    CreateAndBind,
    CreateService,
    DeleteService,
    Result,
    ServiceGone,
    ServiceSeen,
)
from scheduling.kube.translate.manifests import (
    Gang,
    PodSettings,
    PodTemplate,
    pod_manifest,
    service_manifest,
)

JOB_ID = "3f2b8c1e-0000-4000-8000-000000000001"
NAME = f"job-{JOB_ID}"


def create(place, key="create"):
    manifest = service_manifest(place.namespace, JOB_ID, "team")
    return CreateService(key, place.namespace, NAME, manifest)


def path(place, name=NAME):
    return f"/api/v1/namespaces/{place.namespace}/services/{name}"


def news(door, kind, **fields):
    def wanted(each):
        return isinstance(each, kind) and all(
            getattr(each.service, name) == value for name, value in fields.items()
        )

    return door.until(wanted).service


def test_a_service_is_made_once_seen_and_deleted(place, door):
    first, again = door.carry_out(create(place), create(place, "again"))
    made = place.api.ok("GET", path(place))
    assert (first.result, again.result) == (Result.DONE, Result.DONE)
    assert first.uid == again.uid == made["metadata"]["uid"]
    spec = made["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["selector"] == {"kant.io/job": JOB_ID}
    seen = news(door, ServiceSeen, namespace=place.namespace, job=JOB_ID)
    assert (seen.name, seen.uid) == (NAME, first.uid)

    def delete(key, uid):
        return DeleteService(key, place.namespace, NAME, uid)

    [other] = door.carry_out(delete("other", "another"))
    assert other.result is Result.GONE
    assert place.api.ok("GET", path(place))["metadata"]["uid"] == first.uid
    [deleted] = door.carry_out(delete("mine", first.uid))
    assert deleted.result is Result.DONE
    assert news(door, ServiceGone, uid=first.uid).job == JOB_ID
    [gone] = door.carry_out(delete("late", first.uid))
    assert gone.result is Result.GONE


def test_the_service_of_somebody_else_is_none_of_a_job(place, door):
    strange = {**service_manifest(place.namespace, JOB_ID, "team")}
    strange["metadata"] = {"name": NAME, "labels": {"kant.io/job": "another"}}
    place.api.ok("POST", path(place, ""), strange)
    assert news(door, ServiceSeen, namespace=place.namespace, name=NAME).job == ""
    [outcome] = door.carry_out(create(place))
    assert (outcome.result, outcome.code) == (Result.REFUSED, 409)
    no_id = service_manifest(place.namespace, "mine", "team")
    place.api.ok("POST", path(place, ""), no_id)
    assert news(door, ServiceSeen, namespace=place.namespace, name="job-mine").job == ""


def test_services_are_followed_in_all_namespaces_and_those_of_no_job_nowhere(place, door):
    elsewhere = f"{place.namespace}-b"
    for name, labels in (("web", {}), (NAME, {"kant.io/job": JOB_ID})):
        manifest = service_manifest(elsewhere, JOB_ID, "team")
        manifest["metadata"] |= {"name": name, "labels": labels}
        [made] = door.carry_out(CreateService(name, elsewhere, name, manifest))
        assert made.result is Result.DONE, made.message
    assert news(door, ServiceSeen, namespace=elsewhere).name == NAME
    place.api.ok("DELETE", f"/api/v1/namespaces/{elsewhere}/services/{NAME}")
    assert news(door, ServiceGone, namespace=elsewhere).job == JOB_ID


def test_a_pod_of_several_is_taken_with_all_that_it_uses(place, door):
    template = PodTemplate(
        namespace=place.namespace,
        job_id=JOB_ID,
        tenant="team",
        attempt=1,
        pod_set=0,
        image="busybox",
        command=["echo", "$(KANT_RANK)"],
        env={"NODE_RANK": "$(KANT_RANK)"},
        cpu_milli=10,
        scheduler_name=place.scheduler,
        is_told=True,
        gang=Gang(
            job_name="train", pod_set_name="worker", first_rank=0, world_size=2, head="worker-0"
        ),
        settings=PodSettings(
            image_pull_secrets=["registry"],
            shm_mib=64,
            volumes=[
                {
                    "name": "data",
                    "persistent_volume_claim": "datasets",
                    "mount_path": "/data",
                    "read_only": True,
                },
                {"name": "conf", "config_map": "a.b", "mount_path": "/conf", "read_only": True},
                {"name": "keys", "secret": "keys", "mount_path": "/keys", "read_only": True},
            ],
            env_from_secrets={"TOKEN": {"secret": "keys", "key": "api.key"}},
        ),
    )
    manifest = pod_manifest(template, "train", 1)
    [outcome] = door.carry_out(
        CreateAndBind("train", place.namespace, "train", manifest, place.node, {})
    )
    assert outcome.result is Result.BOUND, outcome.message
    spec = place.get("train")["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("worker-1", NAME)
    assert (
        spec["containers"][0]["volumeMounts"] == manifest["spec"]["containers"][0]["volumeMounts"]
    )
    assert [v["name"] for v in spec["volumes"]] == ["kant", "shm", "data", "conf", "keys"]
