"""Static files for an ASGI server."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFiles(WhiteNoiseMiddleware):
    """WhiteNoise with answers that contain their bytes.

    WhiteNoise streams from a file, which only WSGI can read piece by piece: under ASGI Django reads
    the whole stream at once and logs a warning each time. The files are small and were read whole
    anyway.
    """

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        found = static_file.get_response(request.method, request.META)
        body = b""
        if found.file is not None:
            with found.file:
                body = found.file.read()
        answer = HttpResponse(body, status=int(found.status))
        del answer["Content-Type"]  # an answer without a body has none; the others set it below
        for name, value in found.headers:
            answer[name] = value
        return answer
