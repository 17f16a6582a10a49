"""Failed sign-ins: what the person sees, and what the operator finds in the log."""


class SignInFailed(Exception):
    """`title` and `text` appear on the page, sent with HTTP `status`; `cause` goes to the log."""

    def __init__(self, status: int, title: str, text: str, cause: str) -> None:
        super().__init__(cause)
        self.status = status
        self.title = title
        self.text = text
        self.cause = cause
        self.next = ""  # the page to continue with after another attempt


OPERATOR = "An operator finds the cause in the log of the web process."


def not_set_up(name: str, cause: str) -> SignInFailed:
    """Settings of Kant, or of its client at the provider, must be corrected first."""
    text = f"Sign-in with {name} is not set up correctly. {OPERATOR}"
    return SignInFailed(502, "Nobody can sign in this way now", text, cause)


def away(name: str, cause: str) -> SignInFailed:
    text = f"{name} does not answer. Try again in a minute. {OPERATOR}"
    return SignInFailed(502, f"{name} does not answer", text, cause)


def not_trusted(name: str, cause: str) -> SignInFailed:
    text = (
        f"What {name} sent does not prove who you are, so you were not signed in. Try again; if "
        f"it happens again, tell an operator. {OPERATOR}"
    )
    return SignInFailed(502, "The answer cannot be trusted", text, cause)


def clocks(name: str, cause: str) -> SignInFailed:
    text = (
        f"By Kant's clock, what {name} sent is not valid now. Try again; if it happens again, "
        f"the two clocks differ, and an operator must correct Kant's. {OPERATOR}"
    )
    return SignInFailed(502, "The clocks differ", text, cause)


def lost(cause: str) -> SignInFailed:
    """No sign-in in this browser is waiting for this answer."""
    text = (
        "This sign-in was started in another browser, is already over, or took more than ten "
        "minutes. Start again."
    )
    return SignInFailed(400, "Please sign in again", text, cause)


def refused(name: str, error: str, description: str) -> SignInFailed:
    """The provider ended the sign-in: the person cancelled, or may not use Kant."""
    said = f"{error}: {description}" if description else error
    if error == "access_denied":
        text = (
            f"You cancelled, or {name} does not allow you to use Kant. In the second case, ask "
            f"the administrators of {name} for access. It says: {said}"
        )
        return SignInFailed(403, "You were not signed in", text, f"refused with {said!r}")
    text = f"{name} ended it with: {said}. Try again; if it happens again, tell an operator."
    return SignInFailed(502, "You were not signed in", text, f"ended with {said!r}")
