"""All settings, read from the environment; the defaults are the embedded mode of `make run`.

What differs between embedded and production are values that name backends, never branches in
the code. `kant/checks.py` refuses combinations that cannot work.
"""

import fcntl
import os
import sys
from pathlib import Path
from typing import Any

from csp.constants import NONCE, NONE, SELF

from kant.postgresql import PatientConnection
from kant.variables import Variables

env = Variables()

BASE_DIR = Path(__file__).resolve().parent.parent
# A wheel has templates and static files beside this module (setup.py), a checkout at its root.
INSTALLED = (BASE_DIR / "kant" / "templates").is_dir()
SHARED_DIR = BASE_DIR / "kant" if INSTALLED else BASE_DIR
# Everything Kant writes when embedded: the database, the secret key, the cluster's own state.
VAR_DIR = Path(
    env.text("KANT_VAR_DIR", default=str(Path(sys.prefix if INSTALLED else BASE_DIR, "var")))
)

# Embedded mode: one process, SQLite, in-memory broker, demo accounts, the simulated cluster.
EMBEDDED = env.switch("KANT_EMBEDDED", default=True)
DEBUG = env.switch("KANT_DEBUG", default=False)


def _embedded_secret_key() -> str:
    """A random key per installation, kept beside the embedded database so sessions survive. Of
    several that start at once the first makes it."""
    from django.core.management.utils import get_random_secret_key

    path, new = VAR_DIR / "secret_key", get_random_secret_key()
    try:
        VAR_DIR.mkdir(parents=True, exist_ok=True)
        folder = os.open(VAR_DIR, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            path.touch(mode=0o600)
            return path.read_text() or _written(path, new)
        finally:
            os.close(folder)
    except OSError:
        # Somebody else's folder is told in one line by `manage.py serve`, not by an import error.
        return new


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    return text


SECRET_KEY = env.text("KANT_SECRET_KEY", default="") or (_embedded_secret_key() if EMBEDDED else "")
ALLOWED_HOSTS = env.names("KANT_ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.names("KANT_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "kant.apps.KantConfig",
    "tenants.apps.TenantsConfig",
    "scheduling.apps.SchedulingConfig",
    "metrics.apps.MetricsConfig",
    "webhooks.apps.WebhooksConfig",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "django_filters",
    "django_htmx",
    "csp",
]

MIDDLEWARE = [
    "kant.health.Health",
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "kant.static_files.StaticFiles",
    "tenants.sign_in.sessions.Sessions",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "tenants.sign_in.idle.IdleEnd",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "tenants.web.pages.FriendlyNotAllowed",
    "tenants.web.arrivals.Arrivals",
]

ROOT_URLCONF = "kant.urls"
ASGI_APPLICATION = "kant.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [SHARED_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
            ]
        },
    }
]

# --- database -------------------------------------------------------------------------------
DATABASE_TIMEOUT_S = 3  # then whoever asks is told that it is away
DATABASES: dict[str, dict[str, Any]] = {
    "default": env.database("DATABASE_URL", default=f"sqlite:///{VAR_DIR / 'kant.sqlite3'}")
}
DATABASES["default"]["ATOMIC_REQUESTS"] = False
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # IMMEDIATE: a transaction that reads and then writes would otherwise fail at once when
    # another writer came between, ignoring the time-out. WAL: readers never wait.
    DATABASES["default"]["ENGINE"] = "kant.sqlite3"  # threads that write take turns
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    DATABASES["default"]["TEST"] = {"NAME": ":memory:"}
else:
    # Threads and processes come and go. A pool lends them connections, and what is too much at once
    # waits for its turn.
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
    DATABASES["default"].setdefault("OPTIONS", {}).setdefault("connect_timeout", DATABASE_TIMEOUT_S)
    # A server that went without a word, with its machine or its route, is noticed.
    for name, value in {
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }.items():
        DATABASES["default"]["OPTIONS"].setdefault(name, value)
    DATABASES["default"]["OPTIONS"]["pool"] = {
        "min_size": 1,
        "max_size": 20,
        "connection_class": PatientConnection,
        "timeout": DATABASE_TIMEOUT_S,
        # It doubles its pauses so long; then whoever asks next begins anew. A database that was
        # away for minutes is found again within seconds.
        "reconnect_timeout": 10,
    }
# Of one web process at once, fewer than the pool has connections; the others wait, on SQLite as
# long as for their turn to write, and then are told that Kant is busy.
REQUEST_THREADS = 16
REQUEST_WAIT_S = DATABASES["default"]["OPTIONS"].get("timeout", DATABASE_TIMEOUT_S)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- cache and Celery -----------------------------------------------------------------------
REDIS = ("redis", "rediss", "unix")
REDIS_URL = env.address("REDIS_URL", default="", schemes=REDIS)
# A host that drops packets silently must not hold up a submission, which rings both cache and
# broker; nor a listener, which finds out by its next command and connects again.
REDIS_TIMEOUTS = {"socket_connect_timeout": 1.0, "socket_timeout": 1.0}
CACHES: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "kant.redis.cache.RedisCache",
        "LOCATION": REDIS_URL,
        "OPTIONS": REDIS_TIMEOUTS,
    }
    if REDIS_URL
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
}
CELERY_BROKER_URL = env.address(
    "CELERY_BROKER_URL",
    default=REDIS_URL or "memory://localhost/",
    schemes=("redis", "rediss", "redis+socket", "sentinel", "memory"),
)
# The in-memory transport polls once a second unless told otherwise: a doorbell would be slow.
CELERY_BROKER_TRANSPORT_OPTIONS = (
    {"polling_interval": 0.01}
    if CELERY_BROKER_URL.startswith("memory:")
    # Who sends does not wait two seconds to connect again; workers have a rule of their own.
    else {**REDIS_TIMEOUTS, "max_retries": 1, "interval_start": 0, "interval_step": 0}
)
CELERY_TASK_IGNORE_RESULT = True  # but of the runs of a study
CELERY_RESULT_BACKEND = REDIS_URL or None
# A long task must not keep those behind it from other workers.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_DEFAULT_QUEUE = "work"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# Who listens or sends by the clock goes on when the broker is back, and says so once.
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CHANNEL_ERROR_RETRY = True  # a Redis that is full or read-only
CELERY_WORKER_CONSUMER = "kant.redis.broker:Consumer"
CELERY_BEAT_SCHEDULER = "kant.redis.broker:BeatScheduler"
CELERY_TIMEZONE = "UTC"

# --- accounts -------------------------------------------------------------------------------
AUTH_USER_MODEL = "tenants.User"
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
# Single sign-on by OpenID Connect; off without an issuer (docs/operating/).
KANT_OIDC_ISSUER = env.text("KANT_OIDC_ISSUER", default="")
KANT_OIDC_CLIENT_ID = env.text("KANT_OIDC_CLIENT_ID", default="")
KANT_OIDC_CLIENT_SECRET = env.text("KANT_OIDC_CLIENT_SECRET", default="")
KANT_OIDC_CLIENT_SECRET_FILE = env.text("KANT_OIDC_CLIENT_SECRET_FILE", default="")
KANT_OIDC_SCOPES = env.text("KANT_OIDC_SCOPES", default="openid profile email").split()
KANT_OIDC_NAME = env.text("KANT_OIDC_NAME", default="SSO")  # “Sign in with SSO”
KANT_OIDC_USERNAME_CLAIM = env.text("KANT_OIDC_USERNAME_CLAIM", default="preferred_username")
KANT_OIDC_GROUPS_CLAIM = env.text("KANT_OIDC_GROUPS_CLAIM", default="groups")
KANT_OIDC_OPERATOR_GROUPS = env.names("KANT_OIDC_OPERATOR_GROUPS", default=[])
KANT_OIDC_GROUPS_FILE = env.text("KANT_OIDC_GROUPS_FILE", default="")
# API tokens of who has not signed in there for so long are not taken; 0 = they are.
KANT_OIDC_TOKEN_DAYS = env.whole("KANT_OIDC_TOKEN_DAYS", default=0)
KANT_PASSWORD_SIGN_IN = env.switch("KANT_PASSWORD_SIGN_IN", default=True)
SESSION_ENGINE = "tenants.sign_in.sessions"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = not EMBEDDED
CSRF_COOKIE_SECURE = not EMBEDDED
# Who ends TLS before Kant says so, and the addresses that Kant gives then begin with https. Who
# says it and ends none gets such addresses in answers of their own, and nothing else.
SECURE_PROXY_SSL_HEADER = None if EMBEDDED else ("HTTP_X_FORWARDED_PROTO", "https")
# Browsers that came by TLS once come by nothing else for a year.
SECURE_HSTS_SECONDS = 0 if EMBEDDED else 365 * 86400
# Who has not used a page for so long is signed out; 0 = never.
KANT_IDLE_MINUTES = env.whole("KANT_IDLE_MINUTES", default=0 if EMBEDDED else 120)
# Addresses, or networks, of proxies that may say by X-Forwarded-For whom they speak for.
KANT_TRUSTED_PROXIES = env.names("KANT_TRUSTED_PROXIES", default=[])
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# No page needs anything from another site, and no script stands in a template.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF, NONCE],
        "style-src-attr": [
            "'unsafe-inline'"
        ],  # plotly.js positions its drawing by style attributes
        "img-src": [SELF, "data:", "blob:"],
        "object-src": [NONE],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "form-action": [SELF],
    }
}

# --- REST -----------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tenants.api.authentication.ApiTokenAuthentication",
        "tenants.api.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_PAGINATION_CLASS": "tenants.api.pagination.CursorPagination",
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "tenants.api.problems.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "COERCE_DECIMAL_TO_STRING": False,
    "URL_FORMAT_OVERRIDE": None,  # `?format=` is a parameter that nobody knows
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Kant",
    "DESCRIPTION": "Control plane for GPU clusters: tenants, quotas, jobs, metrics.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "COMPONENT_SPLIT_REQUEST": True,
    "SCHEMA_PATH_PREFIX": "/api/v1",
}

# --- pages ----------------------------------------------------------------------------------
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True
DATA_UPLOAD_MAX_NUMBER_FIELDS = 5000  # a job of 32 pod sets with 32 volumes each has 4800
STATIC_URL = "static/"
STATICFILES_DIRS = [SHARED_DIR / "static"]
STATIC_ROOT = None if EMBEDDED else SHARED_DIR / "staticfiles"  # embedded serves from the finders
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if EMBEDDED
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = EMBEDDED
WHITENOISE_AUTOREFRESH = False

LEVEL = env.level("KANT_LOG_LEVEL", default="")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
    },
    "filters": {
        "short": {"()": "kant.log_lines.ShortArguments"},
        "clients": {"()": "kant.log_lines.ClientFaults"},
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": "line",
            "filters": ["short", "clients"],
        }
    },
    "root": {"handlers": ["stderr"], "level": LEVEL or "WARNING"},
    "loggers": {
        name: {"level": LEVEL or "INFO"}
        for name in ("kant", "tenants", "scheduling", "metrics", "webhooks")
    }
    # What it warns of, with a traceback each time, `kant.redis.broker` tells once.
    | {"kombu.transport.redis": {"level": "ERROR"}},
}

# --- Kant -----------------------------------------------------------------------------------
# The tick; a doorbell is faster.
KANT_CYCLE_SECONDS = env.number("KANT_CYCLE_SECONDS", default=1.0, above=0)
KANT_SAMPLE_SECONDS = env.number("KANT_SAMPLE_SECONDS", default=10.0, above=0)  # metric samples
# More GPUs than that, up and down together, nobody changes alone in quotas; not set = any number.
KANT_QUOTA_APPROVAL_GPUS = env.number("KANT_QUOTA_APPROVAL_GPUS", default=None)
KANT_LEASE_SECONDS = env.number(
    "KANT_LEASE_SECONDS", default=15.0, above=0
)  # scheduler lease per cluster
# The time of this file is that of the scheduler's last step, for a probe
# (scheduling/services/scheduler/alive.py).
KANT_ALIVE_FILE = env.text("KANT_ALIVE_FILE", default="")
# How many of the answers that the decision core remembers are worked out anew, to find it wrong:
# a share from 0 to 1. KANT_CHECK=1 checks all of them.
KANT_CHECK_SHARE = env.number("KANT_CHECK_SHARE", default=0.0001)
if env.switch("KANT_CHECK", default=False):
    KANT_CHECK_SHARE = 1.0
# How long jobs that are over and metric samples are kept (docs/decisions/0016).
KANT_KEEP_DAYS = env.whole("KANT_KEEP_DAYS", default=90)
# What `access` of a cluster may name: files below these folders, and programs that a kubeconfig has
# run to sign in, written as there.
KANT_ACCESS_DIRS = env.names(
    "KANT_ACCESS_DIRS", default=[str(VAR_DIR / "clusters") if EMBEDDED else "/etc/kant"]
)
KANT_ACCESS_EXEC = env.names("KANT_ACCESS_EXEC", default=[])
# Networks that webhooks may be sent to although they are not public, e.g. 10.1.0.0/16.
KANT_WEBHOOK_NETWORKS = env.names("KANT_WEBHOOK_NETWORKS", default=[])
# Where people reach this site, for links in what webhooks send; "" = without links.
KANT_PUBLIC_URL = env.text("KANT_PUBLIC_URL", default="")
# A Prometheus that has the metrics of NVIDIA's DCGM exporter, e.g. http://prometheus:9090: how busy
# GPUs are (docs/decisions/0092); "" = nobody is asked.
KANT_PROMETHEUS = env.text("KANT_PROMETHEUS", default="")
# Prometheus scrapes without sign-in; /metrics names tenants, so production opens it knowingly.
KANT_METRICS_OPEN = env.switch("KANT_METRICS_OPEN", default=EMBEDDED)
KANT_TRACES = Path(env.text("KANT_TRACES", default=str(BASE_DIR.parent / "shared" / "traces")))

env.refuse()
