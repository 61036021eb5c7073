"""A shop: twelve kinds of jobs as an application has them. `jobs` does them, `front` pushes them.

waybill broker --data-dir shop-data
waybill worker examples.shop.jobs:jobs --coordinator
python -m examples.shop.front
"""
