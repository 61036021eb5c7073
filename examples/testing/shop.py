"""A program to be tested: an order is confirmed by mail, and mail servers fail at times."""

from waybill import Jobs, Retry

jobs = Jobs("amqp://guest:guest@localhost:5672/%2Fojs")
outbox: list[str] = []
mail_server_works = True


@jobs.handler("email.send", queue="email", retry=Retry(max_attempts=3))
async def send_email(to: str, text: str) -> None:
    if not mail_server_works:
        raise ConnectionError("the mail server does not answer")
    outbox.append(f"{to}: {text}")


async def order(customer: str, thing: str) -> None:
    await send_email.push(customer, f"your {thing} is on its way")
