"""All settings, read from the environment; the defaults are the embedded mode of `make run`.

Embedded and production differ only in values that name backends, never in branches of the code.
`kant/checks.py` refuses combinations that cannot work.
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
# In a wheel, templates and static files are beside this module (setup.py), in a checkout at its
# root.
INSTALLED = (BASE_DIR / "kant" / "templates").is_dir()
SHARED_DIR = BASE_DIR / "kant" if INSTALLED else BASE_DIR
# Everything that embedded Kant writes: the database, the secret key, the cluster's own state.
VAR_DIR = Path(
    env.text("KANT_VAR_DIR", default=str(Path(sys.prefix if INSTALLED else BASE_DIR, "var")))
)

# Embedded mode: one process, SQLite, in-memory broker, demo accounts, the simulated cluster.
EMBEDDED = env.switch("KANT_EMBEDDED", default=True)
DEBUG = env.switch("KANT_DEBUG", default=False)


def _embedded_secret_key() -> str:
    """Return a random key per installation, stored beside the database so that sessions survive.

    If several processes start at once, the first one makes it.
    """
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
        # `manage.py serve` reports an unusable folder in one line; an import error would not.
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
DATABASE_TIMEOUT_S = 3  # then callers are told that the database is away
DATABASES: dict[str, dict[str, Any]] = {
    "default": env.database("DATABASE_URL", default=f"sqlite:///{VAR_DIR / 'kant.sqlite3'}")
}
DATABASES["default"]["ATOMIC_REQUESTS"] = False
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # IMMEDIATE: without it, a transaction that reads and then writes fails at once, despite the
    # time-out, if another writer came in between. WAL: readers never wait.
    DATABASES["default"]["ENGINE"] = "kant.sqlite3"  # writing threads take turns
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    DATABASES["default"]["TEST"] = {"NAME": ":memory:"}
else:
    # Threads and processes come and go. A pool lends them connections; excess requests wait.
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
    DATABASES["default"].setdefault("OPTIONS", {}).setdefault("connect_timeout", DATABASE_TIMEOUT_S)
    # Notice a server that vanished silently, with its machine or its route.
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
        # Pauses double up to this; then the next caller starts over. So a database that was away
        # for minutes is found again within seconds.
        "reconnect_timeout": 10,
    }
# Requests at once in one web process, fewer than the pool has connections. Others wait (on SQLite
# as long as for their turn to write) and are then told that Kant is busy.
REQUEST_THREADS = 16
REQUEST_WAIT_S = DATABASES["default"]["OPTIONS"].get("timeout", DATABASE_TIMEOUT_S)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- cache and Celery -----------------------------------------------------------------------
REDIS = ("redis", "rediss", "unix")
REDIS_URL = env.address("REDIS_URL", default="", schemes=REDIS)
# A host that silently drops packets must not hold up a submission, which uses cache and broker; a
# listener notices at its next command and reconnects.
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
# The in-memory transport polls only once a second by default, which would slow down doorbells.
CELERY_BROKER_TRANSPORT_OPTIONS = (
    {"polling_interval": 0.01}
    if CELERY_BROKER_URL.startswith("memory:")
    # Senders do not wait two seconds to reconnect; workers have their own rule.
    else {**REDIS_TIMEOUTS, "max_retries": 1, "interval_start": 0, "interval_step": 0}
)
CELERY_TASK_IGNORE_RESULT = True  # except for the runs of a study
CELERY_RESULT_BACKEND = REDIS_URL or None
# A long task must not keep the tasks behind it from other workers.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_DEFAULT_QUEUE = "work"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# Workers and beat go on once the broker is back, and log the outage once.
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CHANNEL_ERROR_RETRY = True  # for a Redis that is full or read-only
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
# API tokens are refused if their owner has not signed in there for this many days; 0 = never
# refused.
KANT_OIDC_TOKEN_DAYS = env.whole("KANT_OIDC_TOKEN_DAYS", default=0)
KANT_PASSWORD_SIGN_IN = env.switch("KANT_PASSWORD_SIGN_IN", default=True)
SESSION_ENGINE = "tenants.sign_in.sessions"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = not EMBEDDED
CSRF_COOKIE_SECURE = not EMBEDDED
# The proxy that terminates TLS says so, and Kant's own addresses then begin with https. A client
# that says so without TLS only gets such addresses in its own answers.
SECURE_PROXY_SSL_HEADER = None if EMBEDDED else ("HTTP_X_FORWARDED_PROTO", "https")
# For a year, browsers that came by TLS once use only TLS.
SECURE_HSTS_SECONDS = 0 if EMBEDDED else 365 * 86400
# Sign out users who have not used a page for this long; 0 = never.
KANT_IDLE_MINUTES = env.whole("KANT_IDLE_MINUTES", default=0 if EMBEDDED else 120)
# Addresses or networks of proxies whose X-Forwarded-For is trusted.
KANT_TRUSTED_PROXIES = env.names("KANT_TRUSTED_PROXIES", default=[])
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# No page needs anything from other sites, and no template contains a script.
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
    "URL_FORMAT_OVERRIDE": None,  # `?format=` is no known parameter
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
    # It logs warnings with tracebacks; `kant.redis.broker` reports the same once.
    | {"kombu.transport.redis": {"level": "ERROR"}},
}

# --- Kant -----------------------------------------------------------------------------------
# The tick; a doorbell is faster.
KANT_CYCLE_SECONDS = env.number("KANT_CYCLE_SECONDS", default=1.0, above=0)
KANT_SAMPLE_SECONDS = env.number("KANT_SAMPLE_SECONDS", default=10.0, above=0)  # metric samples
# Quota changes of more GPUs than this, increases plus decreases, need a second person; not set = no
# limit.
KANT_QUOTA_APPROVAL_GPUS = env.number("KANT_QUOTA_APPROVAL_GPUS", default=None)
KANT_LEASE_SECONDS = env.number(
    "KANT_LEASE_SECONDS", default=15.0, above=0
)  # scheduler lease per cluster
# A probe reads this file's modification time as the time of the scheduler's last step
# (scheduling/services/scheduler/alive.py).
KANT_ALIVE_FILE = env.text("KANT_ALIVE_FILE", default="")
# The share of the decision core's remembered answers that are computed again to find errors, from 0
# to 1. KANT_CHECK=1 checks all of them.
KANT_CHECK_SHARE = env.number("KANT_CHECK_SHARE", default=0.0001)
if env.switch("KANT_CHECK", default=False):
    KANT_CHECK_SHARE = 1.0
# How long ended jobs and metric samples are kept (docs/decisions/0016).
KANT_KEEP_DAYS = env.whole("KANT_KEEP_DAYS", default=90)
# What `access` of a cluster may name: files below these folders, and programs that a kubeconfig
# runs to sign in, in the same spelling.
KANT_ACCESS_DIRS = env.names(
    "KANT_ACCESS_DIRS", default=[str(VAR_DIR / "clusters") if EMBEDDED else "/etc/kant"]
)
KANT_ACCESS_EXEC = env.names("KANT_ACCESS_EXEC", default=[])
# Networks that are not public but to which webhooks may be sent, e.g. 10.1.0.0/16.
KANT_WEBHOOK_NETWORKS = env.names("KANT_WEBHOOK_NETWORKS", default=[])
# The address of this site, for links in webhooks; "" = no links.
KANT_PUBLIC_URL = env.text("KANT_PUBLIC_URL", default="")
# A Prometheus with the metrics of NVIDIA's DCGM exporter, e.g. http://prometheus:9090, which knows
# how busy GPUs are (docs/decisions/0092); "" = none.
KANT_PROMETHEUS = env.text("KANT_PROMETHEUS", default="")
# Let Prometheus scrape without sign-in; /metrics names tenants, so in production it is opt-in.
KANT_METRICS_OPEN = env.switch("KANT_METRICS_OPEN", default=EMBEDDED)
KANT_TRACES = Path(env.text("KANT_TRACES", default=str(BASE_DIR.parent / "shared" / "traces")))

env.refuse()
