"""What pages of all apps share: who may open them, and how a use case's refusal looks."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse

from tenants.models import User

View = Callable[..., HttpResponse]


def page_login_required(view: View) -> View:
    """Ask to sign in. A fragment that updates itself reloads its page instead of showing a form."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated:
            return view(request, *args, **kwargs)
        if request.headers.get("HX-Request"):
            return HttpResponse(status=401, headers={"HX-Refresh": "true"})
        return redirect_to_login(request.get_full_path())

    return checked


def actor_of(request: HttpRequest) -> User:
    """The signed-in user of a page behind `page_login_required`."""
    assert isinstance(request.user, User)
    return request.user
