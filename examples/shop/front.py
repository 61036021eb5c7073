"""What customers and the office do: orders, pictures, quotes. `python -m examples.shop.front` does a bit of each."""

import asyncio
from datetime import timedelta
from decimal import Decimal

from examples.shop.jobs import (
    Order,
    charge,
    check_order,
    gently,
    jobs,
    once_per_partner,
    price,
    publish_gallery,
    remind,
    render_preview,
    resize,
    send_mail,
    write_invoice,
)
from waybill import Job
from waybill.ojs import WorkflowHandle, batch, chain

WIDTHS = (320, 640, 1280)


async def place_order(order: Order, *, workflow: str | None = None) -> WorkflowHandle[str]:
    """Check, charge, write the invoice. An id makes it safe to place the same order again."""
    return await chain(check_order.job(order), charge.job(), write_invoice.job()).push(jobs, id=workflow)


async def upload(gallery: str, pictures: list[str], *, workflow: str | None = None) -> WorkflowHandle[list[str | None]]:
    """Resize all pictures to all widths, and publish the gallery when they are there."""
    parts = (resize.job(picture, width) for picture in pictures for width in WIDTHS)
    return await batch(parts, on_success=publish_gallery.job(gallery)).push(jobs, id=workflow)


async def quote(thing: str, count: int) -> Decimal:
    """Ask for a price, as a web request would, and wait for it."""
    job = await price.push(thing, count)
    return await job.result(timeout=300)


async def leave_basket(customer: str, delay: timedelta) -> Job[None]:
    """A customer has gone: remind later."""
    return await remind.options(delay=delay).push(customer)


async def main() -> None:
    """Do a bit of everything, and print what came of it."""
    async with jobs:
        order = await place_order(Order(1, "ada@example.com", "kettle", 2))
        gallery = await upload("spring", ["tulip", "daisy"])
        reminder = await leave_basket("bob@example.com", timedelta(hours=1))
        preview = await render_preview.push("tulip")
        await send_mail.push("ada@example.com", "welcome", copies=["office@example.com"])
        await gently.push("acme", 1)
        await once_per_partner.push("acme", 1)
        print("price:", await quote("tea", 10))
        print("invoice:", await order.result(timeout=60))
        print("pictures:", len(await gallery.result(timeout=60)))
        print("preview:", (await preview.result(timeout=60))[:12])
        await reminder.cancel()
        print("reminder:", await reminder.wait(timeout=60))


if __name__ == "__main__":
    asyncio.run(main())
