"""Members on their page and over REST: origin of rights, search, changes, the last admin."""

import pytest

from tenants.models import AuditRecord, Membership, Role, Tenant, User

API = "/api/v1/tenants/vision/members"
PAGE = "/tenants/vision/members/"


@pytest.fixture
def as_user(org, client):
    def sign_in(who):
        client.force_login(org.users[who])
        return client

    return sign_in


def text(answer):
    return answer.content.decode()


def role(user, tenant="vision"):
    found = Membership.objects.filter(user__username=user, tenant__name=tenant).first()
    return found and found.role


def test_all_who_may_act_are_listed_with_their_right(as_user, org):
    Membership.objects.filter(user__username="joe").update(by_group=True)
    page = text(as_user("root").get(PAGE))
    assert all(f"{name}<" in page or f"{name}\n" in page for name in ("ada", "eve", "joe", "root"))
    assert "a group of the sign-in" in page
    assert "given here" in page
    assert '<a href="/tenants/ml/members/">ml</a>, above' in page
    page = text(as_user("ada").get(PAGE))  # people who cannot see ml learn no names from it
    assert "root" not in page
    assert "1 more may act here" in page
    assert ">lex<" not in page


def test_who_may_see_it_and_who_may_change_it(as_user):
    assert "Add a member" in text(as_user("ada").get(PAGE))
    for who in ("eve", "vic"):
        client = as_user(who)
        assert "Add a member" not in text(client.get(PAGE))
        assert client.post(PAGE, {"username": "lex", "role": "viewer"}).status_code == 404
        client.post(f"{PAGE}joe/remove/")
    assert role("joe") == Role.ENGINEER
    assert as_user("lex").get(PAGE).status_code == 404


def test_somebody_is_added_changed_and_removed(as_user):
    ada = as_user("ada")
    form = {"username": "lex", "role": "viewer", "reason": "Helps out"}
    assert ada.post(PAGE, form).status_code == 302
    assert role("lex") == Role.VIEWER
    assert ada.post(f"{PAGE}?q=le", {**form, "role": "engineer"})["Location"] == f"{PAGE}?q=le"
    assert role("lex") == Role.ENGINEER
    ada.post(f"{PAGE}lex/remove/")
    assert role("lex") is None
    records = AuditRecord.objects.order_by("at").values_list("action", "reason", "source")
    assert list(records) == [
        ("member.set", "Helps out", "page"), ("member.set", "Helps out", "page"),
        ("member.removed", "", "page"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"username": "nobody", "role": "viewer"}, "There is no active user"),
        ({"username": "", "role": "viewer"}, "Fill this in"),
        ({"username": "lex", "role": "king"}, "one of"),
    ],
)
def test_what_is_wrong_stands_at_its_field(as_user, form, said):
    answer = as_user("ada").post(PAGE, form)
    assert answer.status_code == 422
    assert said in text(answer)


def test_they_are_searched_and_paged(as_user, org):
    users = User.objects.bulk_create(User(username=f"u{i:03}") for i in range(60))
    Membership.objects.bulk_create(
        Membership(user=user, tenant=org.tenants["vision"], role=Role.VIEWER) for user in users
    )
    ada = as_user("ada")
    first, second = text(ada.get(PAGE)), text(ada.get(f"{PAGE}?page=2"))
    assert [sum(f">u{i:03}" in each for i in range(60)) for each in (first, second)] == [47, 13]
    assert "u007" in text(ada.get(f"{PAGE}?q=007"))
    assert "No member matches" in text(ada.get(f"{PAGE}?q=none"))
    assert "u007" not in text(ada.get(f"{PAGE}?role=engineer"))
    assert "There is no role “king”" in text(ada.get(f"{PAGE}?role=king"))


def test_a_tenant_without_members_says_so(as_user):
    Tenant.objects.create(name="new")
    assert "No members yet" in text(as_user("ops").get("/tenants/new/members/"))


# --- the last admin -------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["demote", "remove"])
def test_the_last_admin_stays(org, how):
    lex = org.client("lex")
    url = "/api/v1/tenants/law/members/lex"

    def act(client):
        if how == "remove":
            return client.delete(url)
        return client.put(url, {"role": "viewer"}, format="json")

    refused = act(lex)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "last tenant admin" in refused.json()["detail"]
    assert role("lex", "law") == Role.TENANT_ADMIN
    assert not AuditRecord.objects.exists()
    eve = Membership.objects.create(
        user=org.users["eve"], tenant=org.tenants["law"], role=Role.TENANT_ADMIN
    )
    User.objects.filter(username="eve").update(is_active=False)
    assert act(lex).status_code == 409  # an admin who cannot sign in does not count
    User.objects.filter(username="eve").update(is_active=True)
    assert act(lex).status_code in (200, 204)
    eve.delete()
    Membership.objects.filter(user__username="lex").delete()


def test_one_above_is_enough_and_operators_may(org):
    assert org.client("ada").delete(f"{API}/ada").status_code == 204  # root administers ml
    assert org.client("ops").delete("/api/v1/tenants/law/members/lex").status_code == 204


# --- REST -----------------------------------------------------------------------------------------
def test_rest_lists_inherited_roles_on_request(org):
    def names(client, query=""):
        items = client.get(f"{API}{query}").json()["items"]
        return sorted((each["user"], each["tenant"]) for each in items)

    own = [(name, "vision") for name in ("ada", "eve", "joe", "vic")]
    root, ada = org.client("root"), org.client("ada")
    assert names(root) == own
    assert names(root, "?inherited=true") == [*own[:3], ("root", "ml"), own[3]]
    assert names(ada, "?inherited=true") == own
    assert names(root, "?q=E&role=engineer") == [own[1], own[2]]
    assert names(root, "?inherited=true&role=tenant-admin") == [own[0], ("root", "ml")]
    for query in ("?role=king", "?inherited=yes", "?color=red"):
        assert root.get(f"{API}{query}").status_code == 400
