"""The jobs of the shop: `waybill worker examples.shop.jobs:jobs --coordinator`.

The broker is that of WAYBILL_URL. Each handler may run more than once: a worker can be killed at any moment. So what it
does must be right if it is done again.
"""

import asyncio
import hashlib
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Final

from examples.shop.ledger import note
from waybill import Jobs, Retry, Topology, current_job
from waybill.ojs import Unique, parent_result, parent_results
from waybill.ojs.middleware import JobRateLimits

PRICES: Final = {"tea": Decimal("3.80"), "kettle": Decimal("41.50"), "cup": Decimal("7.25")}
SOON: Final = Retry(max_attempts=25, initial_interval=timedelta(seconds=1), backoff_strategy="none", jitter=False)

jobs = Jobs(topology=Topology(queue_type="quorum"))
jobs.use(JobRateLimits(jobs))


@dataclass(frozen=True)
class Order:
    """What a customer wants."""

    number: int
    customer: str
    thing: str
    count: int


@dataclass(frozen=True)
class Payment:
    """What a customer has paid."""

    order: Order
    amount: Decimal


# --- mail: the plain case ---


@jobs.handler("mail.send", queue="mail", retry=SOON, timeout=30)
async def send_mail(to: str, subject: str, *, copies: list[str] | None = None) -> None:
    """Send a mail; the server refuses one in ten at first."""
    if current_job().attempt == 1 and subject.endswith("0"):
        raise ConnectionError("the mail server is busy")
    for address in (to, *(copies or ())):
        note("mail", f"{address}: {subject}")


# --- an order: a chain whose steps build on each other ---


@jobs.handler("order.check", queue="orders", retry=SOON)
async def check_order(order: Order) -> Order:
    """Say whether an order can be fulfilled."""
    if order.thing not in PRICES:
        raise ValueError(f"there is no {order.thing} here")
    note("checked", order.number)
    return order


@jobs.handler("payment.charge", queue="orders", retry=SOON)
async def charge() -> Payment:
    """Charge what the order costs."""
    order = parent_result(check_order)
    note("charged", order.number)
    return Payment(order, PRICES[order.thing] * order.count)


@jobs.handler("invoice.write", queue="orders", retry=SOON)
async def write_invoice() -> str:
    """Write the invoice; its number goes to the customer."""
    payment = parent_result(charge)
    number = f"R{payment.order.number:06}"
    note("invoice", payment.order.number)
    await send_mail.push(payment.order.customer, f"invoice {number}: {payment.amount}")
    return number


# --- pictures: a batch with a callback ---


@jobs.handler("image.resize", queue="images", retry=SOON)
async def resize(picture: str, width: int) -> str:
    """Make a picture of another width, and return its name."""
    await asyncio.sleep(0.01)
    note("resized", f"{picture} {width}")
    return f"{picture}-{width}.webp"


@jobs.handler("gallery.publish", queue="images", retry=SOON)
async def publish_gallery(gallery: str) -> int:
    """Publish a gallery once all of its pictures are there; return how many they are."""
    names = parent_results(resize)
    note("gallery", f"{gallery} {len(names)}")
    return len(names)


# --- A preview keeps a CPU busy, so it has a process of its own ---


@jobs.handler("preview.render", queue="images", retry=SOON, process=True)
def render_preview(picture: str) -> str:
    """Compute the fingerprint of a preview."""
    digest = picture.encode()
    for _ in range(2000):
        digest = hashlib.sha256(digest).digest()
    note("preview", picture)
    return digest.hex()


# --- partners: one catalogue at a time, and not too many calls ---


@jobs.handler("catalog.sync", queue="partners", retry=SOON)
async def sync_catalog(partner: str, change: int) -> None:
    """Read a partner's catalogue; pushed for every change, and needed once for all that wait."""
    await asyncio.sleep(0.05)
    note("synced", f"{partner} {change}")


once_per_partner = sync_catalog.options(unique=Unique(keys=("type", "args"), args_keys=("0",), on_conflict="ignore"))


@jobs.handler("partner.notify", queue="partners", retry=SOON, timeout=20)
async def notify_partner(partner: str, order: int) -> None:
    """Call the partner's webhook."""
    note("notified", f"{partner} {order}")


gently = notify_partner.options(rate_limit={"key": "webhook", "rate": {"limit": 40, "period": "PT1S"}})


# --- A price is wanted by somebody who waits ---


@jobs.handler("quote.price", queue="quotes", retry=SOON, priority=10)
def price(thing: str, count: int) -> Decimal:
    """Return the price of some things. Runs in a thread, as it is a plain function."""
    if thing not in PRICES:
        raise LookupError(f"there is no {thing} here")
    return PRICES[thing] * count


# --- later, or never ---


@jobs.handler("basket.remind", queue="mail", retry=SOON)
async def remind(customer: str) -> None:
    """Remind somebody of a full basket, unless the order comes first: then the job is cancelled."""
    note("reminded", customer)


# --- by the clock ---


@jobs.cron("30 2 * * *", tz="Europe/Berlin", missed="once", name="nightly-report")
@jobs.handler("report.nightly", queue="reports", retry=SOON, timeout=600)
async def nightly_report() -> None:
    """Add up the day."""
    note("report", current_job().meta.get("cron_triggered_at"))


@jobs.cron(every=timedelta(seconds=2), missed="all", overlap="allow", name="stock-count")
@jobs.handler("stock.count", queue="reports", retry=SOON)
async def count_stock() -> None:
    """Count what is there, every two seconds."""
    note("counted", current_job().meta["cron_triggered_at"])
