"""The addresses of the application."""

# pyright: basic

from django.contrib import admin
from django.urls import path

from examples.web.django_shop.views import register, register_safely

urlpatterns = [
    path("users/<str:name>", register),
    path("safe-users/<str:name>", register_safely),
    path("admin/", admin.site.urls),
]
