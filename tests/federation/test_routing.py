"""The strategies (ojs-federation section 5), and what a dry run tells of them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.federation.conftest import Asking, federation_of
from waybill.federation.layer import Layer

AFFINITY = "ojs.federation.region_affinity"


def asking_of(**settings: object) -> Asking:
    """Three regions that are healthy: a is near, c is nearer, b is far."""
    given = settings.pop("regions", {})
    more: dict[str, dict[str, object]] = given if isinstance(given, dict) else {}
    entries = [{"id": name, "url": "http://127.0.0.1:1", **more.get(name, {})} for name in ("a", "b", "c")]
    layer = Layer(federation_of(*entries, **settings))
    for region, latency in zip(layer.regions, (20.0, 50.0, 10.0), strict=True):
        region.problem, region.latency_ms = None, latency
    return Asking(layer)


def order_of(asking: Asking, strategy: str | None = None, without: str = "", **job: object) -> list[str]:
    for region in asking.layer.regions:
        region.problem = "it is down" if region.id in without else None
    meta = {**({} if strategy is None else {AFFINITY: strategy}), **job.pop("meta", {})}  # type: ignore[dict-item]
    found = asking.layer.resolve({"type": "x", "meta": meta, **job})
    candidates = found["candidates"]
    assert isinstance(candidates, list)
    tried = [one["id"] for one in candidates if one["score"] > 0]
    assert found["target_region"] == (tried[0] if tried else None)
    return tried


def test_affinity_prefers_the_local_region_then_the_nearest() -> None:
    asking = asking_of(local_region="b")
    assert order_of(asking) == ["b", "c", "a"]
    assert order_of(asking, without="b") == ["c", "a"]
    assert order_of(asking, without="abc") == []
    assert order_of(asking_of()) == ["c", "a", "b"]


def test_latency_decides_regardless_of_what_is_local() -> None:
    asking = asking_of(local_region="b")
    assert order_of(asking, "latency-based") == ["c", "a", "b"]
    assert order_of(asking, "latency-based", without="c") == ["a", "b"]


def test_active_passive_goes_by_priority() -> None:
    asking = asking_of(regions={"a": {"priority": 3}, "b": {"priority": 0}, "c": {"priority": 2}})
    assert order_of(asking, "active-passive") == ["b", "c", "a"]
    assert order_of(asking, "active-passive", without="b") == ["c", "a"]


def test_a_pinned_job_has_one_region() -> None:
    asking = asking_of(local_region="a", regions={"b": {"queues": ["video"]}})
    meta = {"ojs.federation.region": "b"}
    assert order_of(asking, "geo-pin", meta=meta) == ["b"]
    assert order_of(asking, meta=meta) == ["b"]
    assert order_of(asking, "geo-pin", without="b", meta=meta) == []


def test_geographic_hints_lead_to_regions() -> None:
    table = {"hints": ["country", "continent"], "regions": {"DE": "b", "EU": "a"}}
    asking = asking_of(geographic=table, local_region="c")
    assert order_of(asking, "geographic", meta={"country": "DE", "continent": "EU"}) == ["b", "c", "a"]
    assert order_of(asking, "geographic", meta={"country": "FR", "continent": "EU"}) == ["a", "c", "b"]
    assert order_of(asking, "geographic", without="b", meta={"country": "DE"}) == ["c", "a"]
    assert order_of(asking, "geographic", meta={"country": 7}) == ["c", "a", "b"]
    assert order_of(asking_of(geographic=table, default_strategy="geographic")) == ["c", "a", "b"]


def targets(asking: Asking, strategy: str, count: int) -> list[str]:
    from waybill.federation.wanted import wanted_of

    plans = [asking.layer.routing.plan(wanted_of({"meta": {AFFINITY: strategy}})) for _ in range(count)]
    return [plan.targets[0].id for plan in plans]


def test_round_robin_cycles_and_skips() -> None:
    asking = asking_of()
    assert targets(asking, "round-robin", 4) == ["a", "b", "c", "a"]
    assert order_of(asking, "round-robin") == order_of(asking, "round-robin") == ["b", "c", "a"]
    region = asking.layer.regions.get("b")
    assert region is not None
    region.problem = "it is down"
    assert targets(asking, "round-robin", 4) == ["c", "a", "c", "a"]


def test_overflow_follows_the_weights() -> None:
    asking = asking_of(regions={"a": {"weight": 8}, "b": {"weight": 2}})
    counts = Counter(targets(asking, "overflow", 2000))
    assert counts["a"] > 2 * counts["b"] > 2 * counts["c"] > 0
    assert "a" not in order_of(asking, "overflow", without="a")


def test_tags_and_queues_say_which_regions_may_have_a_job() -> None:
    asking = asking_of(
        local_region="a",
        regions={"a": {"tags": ["gdpr"]}, "b": {"tags": ["gpu", "gdpr"]}, "c": {"queues": ["billing"]}},
    )
    assert order_of(asking, queue="email") == ["a", "b"]
    assert order_of(asking, options={"queue": "billing"}) == ["c"]
    assert order_of(asking, tags=["gpu"]) == ["b"]
    assert order_of(asking, tags=["gdpr", "unknown"]) == ["a", "b"]
    assert order_of(asking, options={"tags": ["gpu", "gdpr"]}, without="b") == []


async def test_a_job_that_nobody_serves_is_refused_or_has_a_default_region() -> None:
    only = {name: {"queues": ["x"]} for name in ("a", "b", "c")}
    error = (await asking_of(regions=only).ask("POST", "/v1/federation/route", {"queue": "y"}, 422))["error"]
    assert (error["code"], error["details"]["queue"]) == ("unsupported", "y")
    assert order_of(asking_of(regions=only, default_region="b"), queue="y") == ["b"]


def test_failover_is_excluded_preferred_or_off() -> None:
    assert order_of(asking_of(local_region="a", failover={"exclude_regions": ["c"]})) == ["a", "b"]
    assert order_of(asking_of(local_region="a", failover={"prefer_regions": ["b"]})) == ["a", "b", "c"]
    assert order_of(asking_of(local_region="a", failover={"enabled": False})) == ["a"]
    assert order_of(asking_of(local_region="a", failover={"enabled": False}), without="a") == []
    # The strategy's first choice is no failover.
    assert order_of(asking_of(local_region="c", failover={"exclude_regions": ["c"]})) == ["c", "a", "b"]


@pytest.mark.parametrize("kind", ["cron", "workflows"])
async def test_what_belongs_to_one_region_is_refused_with_a_hint(kind: str) -> None:
    error = (await asking_of().ask("POST", f"/ojs/v1/{kind}", {}, 422))["error"]
    assert (error["code"], "/v1/federation/regions" in error["hint"]) == ("unsupported", True)


async def test_a_dry_run_explains_itself() -> None:
    asking = asking_of(local_region="a", failover={"exclude_regions": ["c"]})
    found = await asking.ask("POST", "/v1/federation/route", {"type": "email.send"})
    assert found == {
        "target_region": "a",
        "strategy": "affinity",
        "candidates": [
            {"id": "a", "score": 1.0, "reason": "local, healthy, 20 ms"},
            {"id": "b", "score": 0.5, "reason": "healthy, 50 ms"},
            {"id": "c", "score": 0.0, "reason": "healthy, 10 ms, excluded from failover"},
        ],
    }
