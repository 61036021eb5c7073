"""Federation of servers: each server is a region, and each job goes to one region (ojs-federation).

    jobs = Jobs("federation:regions.toml")

The same layer runs in a program, and as a proxy: `waybill federation serve`. Each region has its own jobs; nothing is
replicated.
"""
