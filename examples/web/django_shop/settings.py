"""The settings of the shop. A real one has a SECRET_KEY that is secret."""

# pyright: basic

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "not secret")
DEBUG = True
ALLOWED_HOSTS = ["localhost", "testserver"]
ROOT_URLCONF = "examples.web.django_shop.urls"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "waybill.django",
    "examples.web.django_shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite")}
}

WAYBILL = {"PUSH_TIMEOUT": 5.0}  # the broker of WAYBILL_URL, unless there is a "URL" here
