"""REST for one's own account: who am I, and API tokens."""

from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import selectors
from tenants.api.authentication import (
    ApiTokenAuthentication,
    PasswordAuthentication,
    SessionAuthentication,
)
from tenants.api.base import ListView, View, rehearsed
from tenants.api.fields import Choice, List, Moment, Serializer, Text
from tenants.api.idempotency import idempotent
from tenants.api.parsers import StrictJSONParser, UnlabelledJSONParser
from tenants.api.schema import Shape
from tenants.models import ApiToken, Scope
from tenants.services.tokens import create_token, family, revoke_token


class MembershipOutput(serializers.Serializer[Any]):
    tenant = serializers.CharField(source="tenant.name")
    role = serializers.CharField()


class TokenInput(Serializer):
    name = Text(max_length=100)
    expires_at = Moment(
        required=False,
        allow_null=True,
        help_text="When the token expires. At the latest, and by default, when the token of this "
        "request expires.",
    )
    scopes = List(
        child=Choice(Scope.values),
        max_length=len(Scope.values),
        required=False,
        allow_null=True,
        help_text="What the token may do; null = all that its owner may do.",
    )
    tenant = Text(
        max_length=63,
        required=False,
        allow_null=True,
        help_text="The token works only for this tenant and those below it; null = for all.",
    )


class TokenOutput(serializers.Serializer[ApiToken]):
    id = serializers.IntegerField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    scopes = serializers.ListField(
        child=serializers.ChoiceField(Scope.choices), source="scope_names"
    )
    tenant = serializers.CharField(source="tenant.name", default=None, allow_null=True)
    made_by = serializers.IntegerField(
        source="parent_id",
        allow_null=True,
        help_text="The token that created this one; when it ends, this one ends too.",
    )
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)


class MeOutput(serializers.Serializer[Any]):
    username = serializers.CharField()
    name = serializers.CharField()
    email = serializers.CharField()
    is_operator = serializers.BooleanField()
    memberships = MembershipOutput(many=True)
    token = TokenOutput(allow_null=True, help_text="The API token of this request and its rights.")


class NewTokenOutput(TokenOutput):
    secret = serializers.CharField(
        allow_null=True,
        help_text="The secret, shown only once; null if the request is repeated. Kant keeps only "
        "a hash.",
    )


class MeView(View):
    """The account that the request acts as, its roles, and the token."""

    scope = ""
    shapes = {
        "GET": Shape(MeOutput),
    }

    def get(self, _request: Request) -> Response:
        user = self.actor
        account = {
            "username": user.get_username(),
            "name": user.get_full_name(),
            "email": user.email,
            "is_operator": user.is_operator,
            "memberships": selectors.memberships_of(user),
            "token": self.token,
        }
        return Response(MeOutput(account).data)


class TokensView(ListView):
    """Your API tokens, newest first; their secrets cannot be read.

    You may request a new one with user name and password: `curl -u NAME:PASSWORD …/api/v1/tokens -d
    '{"name": "laptop"}'`. A token that another token requests may never do more than that one, nor
    last longer; a limited token sees only itself and those that it created.
    """

    scope = ""

    shapes = {
        "GET": Shape(TokenOutput, many=True),
        "POST": Shape(NewTokenOutput, TokenInput, creates=True, passwords=True),
    }
    authentication_classes = [
        PasswordAuthentication,
        ApiTokenAuthentication,
        SessionAuthentication,
    ]
    parser_classes = [StrictJSONParser, UnlabelledJSONParser]

    page_order = ("-id",)
    queryset = ApiToken.objects.none()
    serializer_class = TokenOutput

    def get_queryset(self) -> QuerySet[ApiToken]:
        found = selectors.tokens_of(self.actor)
        if self.token is not None and self.token.is_limited:
            found = found.filter(pk__in=family(self.token.pk))
        return found

    def get(self, _request: Request) -> Response:
        return self.page(TokenOutput)

    @idempotent(forget="secret")
    def post(self, _request: Request) -> Response:
        given = self.body(TokenInput)
        token, secret = create_token(
            self.actor,
            given["name"],
            expires_at=given.get("expires_at"),
            scopes=given.get("scopes"),
            tenant=given.get("tenant"),
            parent=self.token,
            dry_run=self.dry_run,
        )
        if self.dry_run:
            return rehearsed("create", TokenOutput(token).data)
        return Response({**TokenOutput(token).data, "secret": secret}, status=201)


class TokenView(View):
    scope = ""
    shapes = {
        "DELETE": Shape(),
    }

    def delete(self, _request: Request, token_id: int) -> Response:
        revoke_token(self.actor, token_id, by=self.token, dry_run=self.dry_run)
        return rehearsed("delete", None) if self.dry_run else Response(status=204)
