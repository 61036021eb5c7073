"""Fair scheduling: which queue a fetch takes its jobs from (ojs-fair-scheduling).

- `pool`: the pools of workers that operators define.
- `rotation`: the order of the queues for one fetch, by strategy.
- `dispatches`: the recently fetched jobs of each queue.
- `scheduler`: applies the three to a fetch.
"""
