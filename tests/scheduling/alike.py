"""Compare an act with its rehearsal: try both in one state, which is restored afterwards."""

from contextlib import contextmanager

from django.apps import apps
from django.db import connection, transaction

# The audit trail keeps previews, and Kant records the use of a token.
KEPT = ("tenants_changepreview",)
PEOPLE = ("ops", "root", "ada", "eve", "joe", "vic", "lex")


TABLES = tuple(sorted(one._meta.db_table for one in apps.get_models(include_auto_created=True)))


def rows(*but):
    """Return all rows of all tables, except those that previews may write, and these."""
    found = {}
    with connection.cursor() as cursor:
        for table in TABLES:
            if table not in (*KEPT, *but):
                cursor.execute(f'SELECT * FROM "{table}"')
                names = [column[0] for column in cursor.description]
                used = names.index("last_used_at") if "last_used_at" in names else len(names)
                told = ((*row[:used], *row[used + 1 :]) for row in cursor.fetchall())
                found[table] = sorted(map(repr, told))
    return found


@contextmanager
def taken_back():
    """Undo everything that is done within the block."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def problem(answer):
    """Return the text of a refusal, which the preview must share."""
    body = answer.json()
    told = {name: body.get(name) for name in ("status", "code", "detail", "errors")}
    return told | {"header": answer.headers.get("ETag")}


def refused_alike(about, rehearsed, done):
    """Check that both were refused in the same words, or neither; return whether they were."""
    said = [answer.content.decode()[:400] for answer in (rehearsed, done)]
    if done.status_code < 300:
        assert rehearsed.status_code == 200, f"{about}: {said}"
        return False
    assert rehearsed.status_code == done.status_code, f"{about}: {said}"
    assert problem(rehearsed) == problem(done), f"{about}: {said}"
    return True


def rehearsed_and_done(about, client, method, path, body=None, **headers):
    """Rehearse the act, which must change nothing, then do it and undo it. Returns the answer to
    the act, and whether it was refused."""
    send, sep = getattr(client, method), "&" if "?" in path else "?"
    before = rows()
    with transaction.atomic():  # a rehearsal by Kant's own transactions, inside of the test's
        rehearsed = send(f"{path}{sep}dry_run=true", body, format="json", headers=headers)
    assert rows() == before, about
    with taken_back():
        done = send(path, body, format="json", headers=headers)
    return done, refused_alike(about, rehearsed, done)
