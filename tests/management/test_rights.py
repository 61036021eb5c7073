"""Who may do what over the management API."""

from typing import Final

from tests.management.api import running

READS = (
    "/overview",
    "/queues",
    "/exchanges",
    "/bindings",
    "/vhosts",
    "/connections",
    "/channels",
    "/consumers",
    "/whoami",
)
OF_MONITORS = ("/nodes",)
OF_POLICYMAKERS = ("/policies", "/operator-policies", "/parameters")
OF_ADMINISTRATORS = (
    "/users",
    "/permissions",
    "/definitions",
    "/global-parameters",
    "/user-limits",
    "/topic-permissions",
)


async def test_who_shows_no_password_is_refused() -> None:
    async with running() as api:
        for login in (None, "guest:wrong", "nobody:x", "guest"):
            reply = await api.ask("GET", "/overview", login=login)
            assert reply.status == 401
            assert reply.json == {"error": reply.json["error"], "reason": "Login failed"}
            assert reply.headers["WWW-Authenticate"].startswith("Basic")


async def test_a_user_needs_a_tag() -> None:
    async with running() as api:
        login = await api.user("u", "")
        reply = await api.ask("GET", "/whoami", login=login)
        assert (reply.status, reply.json["error"]) == (401, "not_authorised")


async def test_what_each_tag_may_read() -> None:
    allowed = {
        "management": READS,
        "policymaker": READS + OF_POLICYMAKERS,
        "monitoring": READS + OF_MONITORS,
        "administrator": READS + OF_MONITORS + OF_POLICYMAKERS + OF_ADMINISTRATORS,
    }
    async with running() as api:
        for tag, paths in allowed.items():
            login = await api.user(tag, tag)
            for path in READS + OF_MONITORS + OF_POLICYMAKERS + OF_ADMINISTRATORS:
                reply = await api.ask("GET", path, login=login)
                assert reply.status == (200 if path in paths else 401), (tag, path)


OF_ADMINISTRATORS_ONLY: Final[tuple[tuple[str, str, object], ...]] = (
    ("PUT", "/users/x", {"password": "", "tags": ""}),
    ("DELETE", "/users/guest", None),
    ("PUT", "/vhosts/x", None),
    ("DELETE", "/vhosts/%2F", None),
    ("PUT", "/permissions/%2F/guest", {"configure": "", "write": "", "read": ""}),
    ("DELETE", "/permissions/%2F/guest", None),
    ("PUT", "/operator-policies/%2F/p", {"pattern": "", "definition": {"max-length": 1}}),
    ("POST", "/definitions", {}),
    ("PUT", "/cluster-name", {"name": "x"}),
    ("PUT", "/vhost-limits/%2F/max-queues", {"value": 1}),
    ("PUT", "/user-limits/guest/max-connections", {"value": 1}),
    ("POST", "/users/bulk-delete", {"users": ["guest"]}),
    ("DELETE", "/connections/username/guest", None),
)


async def test_what_only_administrators_change() -> None:
    async with running() as api:
        for tag in ("management", "policymaker", "monitoring"):
            login = await api.user(tag, tag)
            for method, path, body in OF_ADMINISTRATORS_ONLY:
                assert (await api.ask(method, path, body, login=login)).status == 401, (tag, path)


async def test_permissions_hold_for_what_is_declared() -> None:
    async with running() as api:
        login = await api.user("u", "management")
        await api.put("/permissions/%2F/u", {"configure": "^mine", "write": "^mine", "read": "^mine"})
        assert (await api.ask("PUT", "/queues/%2F/mine", {}, login=login)).status == 201
        reply = await api.ask("PUT", "/queues/%2F/other", {}, login=login)
        assert (reply.status, reply.json["error"]) == (401, "not_authorised")
        assert "configure access to queue 'other'" in reply.json["reason"]
        await api.queue("other")
        get = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
        publish = {"properties": {}, "routing_key": "other", "payload": "x", "payload_encoding": "string"}
        for method, path, body in (
            ("DELETE", "/queues/%2F/other", None),
            ("DELETE", "/queues/%2F/other/contents", None),
            ("POST", "/queues/%2F/other/get", get),
            ("POST", "/exchanges/%2F/amq.default/publish", publish),
            ("POST", "/bindings/%2F/e/amq.topic/q/other", {}),
        ):
            assert (await api.ask(method, path, body, login=login)).status == 401, path


async def test_other_virtual_hosts_are_hidden() -> None:
    async with running() as api:
        login = await api.user("u", "management")
        await api.put("/queues/%2Fojs/secret", {})
        assert [one["name"] for one in await api.get("/vhosts", login)] == ["/"]
        assert await api.get("/queues", login) == []
        for path in ("/queues/%2Fojs", "/queues/%2Fojs/secret", "/exchanges/%2Fojs", "/aliveness-test/%2Fojs"):
            assert (await api.ask("GET", path, login=login)).status == 401
        monitor = await api.user("m", "monitoring")
        assert [one["name"] for one in await api.get("/queues", monitor)] == ["secret"]
        assert (await api.ask("DELETE", "/queues/%2Fojs/secret", login=monitor)).status == 401


async def test_pages_of_others_change_nothing() -> None:
    async with running() as api:
        headers = {"origin": "http://evil.example", "host": "127.0.0.1:15672"}
        assert (await api.ask("PUT", "/queues/%2F/q", {}, headers=headers)).status == 401
        headers["origin"] = "http://127.0.0.1:15672"
        assert (await api.ask("PUT", "/queues/%2F/q", {}, headers=headers)).status == 201


async def test_paths_and_methods_that_are_not_there() -> None:
    async with running() as api:
        assert (await api.ask("GET", "/nonsense")).status == 404
        reply = await api.ask("POST", "/overview")
        assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
        assert (await api.ask("OPTIONS", "/overview", login=None)).status == 200
        assert (await api.ask("GET", "/queues/absent")).status == 404
