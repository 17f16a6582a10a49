"""What claims, volumes and storage classes mean for the pods that mount them."""

import pytest

from scheduling.engine.types import NodeExpression
from scheduling.kube.seam import ClaimFacts, StorageClassFacts, VolumeFacts
from scheduling.session.memory.storage import Storage

ZONE = ((NodeExpression("zone", "In", ("a",)),),)


def claim(name="data", uid="c1", **fields):
    asked = {
        "bound": False,
        "lost": False,
        "deleting": False,
        "volume": "",
        "storage_class": "",
        "selected_node": "",
    }
    return ClaimFacts("team", name, uid, **{**asked, **fields})


def of_class(name="fast", *, waits=True, provisions=True, topologies=()):
    return StorageClassFacts(name, f"uid-{name}", waits, provisions, topologies)


def storage(*facts):
    made = Storage()
    for each in facts:
        made.seen(each)
    return made


BOUND = claim(bound=True, volume="pv")


@pytest.mark.parametrize(
    ("facts", "text", "helps"),
    [
        ([], "There is no volume claim data in namespace team.", "create the c"),
        ([claim("other")], "There is no volume claim data in namespace team.", "create the c"),
        (
            [claim(deleting=True)],
            "Volume claim data is being deleted.",
            "create the claim again",
        ),
        ([claim(lost=True, volume="pv")], "Volume claim data has lost its volume.", "create the c"),
        ([BOUND], "There is no volume pv of claim data.", "create the claim again"),
        ([claim(volume="pv")], "Volume claim data is not bound to its volume pv yet.", "see kub"),
        ([claim()], "Volume claim data is not bound and has no storage class.", "create a volume"),
        (
            [claim(storage_class="fast")],
            "Volume claim data is not bound, and there is no storage class fast.",
            "create the c",
        ),
        (
            [claim(storage_class="fast"), of_class(waits=False)],
            "Volume claim data is not bound yet.",
            "see kubectl --namespace team describe pvc data",
        ),
        (
            [claim(storage_class="fast"), of_class(provisions=False)],
            "Volume claim data is not bound, and storage class fast waits for its first consumer "
            "but makes no volumes.",
            "name one of its volumes in spec.volumeName of the claim",
        ),
        (
            [claim(storage_class="fast", selected_node="n1"), of_class()],
            "A volume is being made for claim data.",
            "see kubectl --namespace team describe pvc data",
        ),
    ],
)
def test_why_a_claim_cannot_be_mounted(facts, text, helps):
    need = storage(*facts).need("team", "data")
    assert need.hold is not None
    assert not need.can_be_mounted
    assert need.hold.text == text
    assert need.hold.helps.startswith(helps)


def test_a_bound_claim_asks_for_the_nodes_of_its_volume():
    need = storage(BOUND, VolumeFacts("pv", "v1", (ZONE,))).need("team", "data")
    assert (need.affinity, need.can_be_mounted) == ((ZONE,), True)


def test_a_claim_that_waits_for_its_first_consumer_asks_for_what_its_class_can_reach():
    waits = claim(storage_class="fast")
    need = storage(waits, of_class(topologies=ZONE)).need("team", "data")
    assert (need.affinity, need.first, need.hold) == ((ZONE,), waits, None)
    assert not need.can_be_mounted
    assert storage(waits, of_class()).need("team", "data").affinity == ()


def test_what_is_gone_is_forgotten_unless_another_has_its_name():
    known = storage(BOUND, VolumeFacts("pv", "v1", ()), of_class())
    before = known.version
    known.gone(VolumeFacts("pv", "older", ()))
    known.gone(claim(uid="older"))
    known.gone(StorageClassFacts("fast", "older", True, True, ()))
    assert known.need("team", "data").can_be_mounted
    assert known.version > before
    known.gone(VolumeFacts("pv", "v1", ()))
    assert known.need("team", "data").hold.text.startswith("There is no volume pv")
    known.gone(BOUND)
    assert known.need("team", "data").hold.text.startswith("There is no volume claim")


def test_a_node_is_told_while_the_volume_is_being_made():
    known = storage(claim(selected_node="n1"))
    assert known.selected_node("team", "data") == "n1"
    known.seen(claim(selected_node="n1", bound=True, volume="pv"))
    assert known.selected_node("team", "data") == ""
    assert known.selected_node("team", "other") == ""
