"""Several servers of jobs as one: each is a region, and each job goes to one of them (ojs-federation).

    jobs = Jobs("federation:regions.toml")

The same layer runs in a program, and as a proxy for others: `waybill federation serve`. Every region keeps its own
jobs; nothing is replicated.
"""
