"""The jobs of the shop: found by itself. Handlers may use the ORM, as plain functions run in threads."""

# pyright: basic

from django.contrib.auth.models import User

from waybill.django import jobs


@jobs.handler("user.welcome", queue="django-mail")
def welcome(user_id: int) -> str:
    user = User.objects.get(pk=user_id)
    return f"welcome, {user.get_username()}"
