"""All settings, in the order in which they are shown. docs/reference/configuration.md lists them."""

from __future__ import annotations

from typing import Final

from waybill.settings.kinds import (
    Address,
    Boolean,
    Choice,
    DirectoryName,
    FileName,
    Integer,
    NameList,
    Seconds,
    Size,
    Text,
    TraceAddress,
)
from waybill.settings.setting import Setting
from waybill.settings.users import Users

PORT: Final = Integer(0, 65_535)
DAYS: Final = Integer(1, 36_500)
YEAR_S: Final = 31_536_000
COUNT: Final = Integer(1, 10_000_000)
CONTENT: Final = Size(4096, 1 << 40)

LIMITS: Final = (
    Setting("limits.frame_max", Size(4096, 16 << 20), 131_072, "Maximum frame size.", reloads=True),
    Setting(
        "limits.channel_max", Integer(1, 65_535), 2047, "Maximum channels or sessions per connection.", reloads=True
    ),
    Setting(
        "limits.heartbeat_s",
        Integer(0, 65_535),
        60,
        "Heartbeat interval that the broker proposes; 0 turns it off.",
        reloads=True,
    ),
    Setting(
        "limits.handshake_timeout_s", Seconds(0.1, 3600), 10.0, "Time limit for the handshake and login.", reloads=True
    ),
    Setting(
        "limits.close_timeout_s", Seconds(0.1, 3600), 5.0, "Time limit for a peer to answer a close.", reloads=True
    ),
    Setting("limits.message_size_max", Size(1, 1 << 30), 32 << 20, "Maximum message size.", reloads=True),
    Setting("limits.consumers_per_channel_max", COUNT, 65_536, "Maximum consumers per channel.", reloads=True),
    Setting(
        "limits.unsettled_per_channel_max", COUNT, 1 << 18, "Maximum unsettled deliveries per channel.", reloads=True
    ),
    Setting(
        "limits.consumer_timeout_s",
        Seconds(0, YEAR_S),
        1800.0,
        "Time limit for unsettled deliveries; 0 means no limit.",
        reloads=True,
    ),
    Setting(
        "limits.connections_max",
        COUNT,
        65_536,
        "Maximum connections; at most half of the file descriptors.",
        reloads=True,
    ),
    Setting(
        "limits.tls_connections_max",
        COUNT,
        3000,
        "Maximum connections with TLS, which take 50 KB more than others, whether they have logged in or not.",
        reloads=True,
    ),
    Setting(
        "limits.handshakes_max",
        COUNT,
        1024,
        "Maximum sockets that have not logged in yet, in addition to connections.",
        reloads=True,
    ),
    Setting("limits.streams_max", COUNT, 65_536, "Maximum streams; at most a quarter of the file descriptors."),
    Setting("limits.queues_per_virtual_host_max", COUNT, 200_000, "Maximum queues per virtual host.", reloads=True),
    Setting(
        "limits.exchanges_per_virtual_host_max", COUNT, 200_000, "Maximum exchanges per virtual host.", reloads=True
    ),
    Setting(
        "limits.output_high_water",
        Size(4096, 1 << 30),
        512 << 10,
        "Maximum output that a consumer has not read yet.",
        reloads=True,
    ),
    Setting(
        "limits.held_per_connection_max",
        CONTENT,
        128 << 20,
        "Maximum size of incomplete messages and transactions per connection.",
        reloads=True,
    ),
    Setting(
        "limits.transaction_units_max",
        COUNT,
        16_384,
        "Maximum units of work in a transaction.",
        reloads=True,
    ),
    Setting("limits.links_per_connection_max", COUNT, 4096, "Maximum AMQP 1.0 links per connection.", reloads=True),
    Setting(
        "limits.settling_per_connection_max",
        COUNT,
        1 << 18,
        "Maximum AMQP 1.0 deliveries per connection with an outcome that are not settled.",
        reloads=True,
    ),
    Setting("limits.kept_links_per_user_max", COUNT, 16_384, "Maximum detached AMQP 1.0 links per user."),
    Setting("limits.durable_links_per_user_max", COUNT, 8192, "Maximum durable AMQP 1.0 links per user."),
)

SETTINGS: Final = (
    Setting(
        "data_dir",
        DirectoryName(),
        None,
        "Directory for messages, users and all other data.  [default: ~/.local/share/waybill]",
    ),
    Setting("memory", Boolean(), default=False, help="Keep everything in memory; it is lost when the process ends."),
    Setting("node_name", Text(255), "waybill", "Name of the node."),
    Setting("definitions", FileName(), None, "Import RabbitMQ's JSON of users, policies, queues and more at start."),
    Setting("users", Users(), (), "Users for a new data directory, instead of guest; JSON in options and variables."),
    Setting(
        "database",
        Address(),
        None,
        "Database for the state of all jobs: a SQLite file, or a URL like postgresql://user@host/name.  [default:"
        " `up`: jobs.db in the data directory; `serve`: in memory, read from the events at each start]",
    ),
    Setting(
        "keep_days",
        DAYS,
        None,
        "Delete jobs from the database this many days after their end.  [default: keep all jobs]",
    ),
    Setting("keys", FileName(), None, "File with API keys: see `waybill key`.", reloads=False),
    Setting("amqp.host", Text(255), "127.0.0.1", "Address to listen on for AMQP, with and without TLS."),
    Setting("amqp.port", PORT, 5672, "Port for AMQP; 0 chooses a free port."),
    Setting("amqps.port", PORT, 5671, "Port for AMQP with TLS; 0 chooses a free port."),
    Setting("amqps.certificate", FileName(), None, "PEM file with the certificate chain of this broker.", reloads=True),
    Setting("amqps.key", FileName(), None, "PEM file with the private key of the certificate.", reloads=True),
    Setting("amqps.ca", FileName(), None, "PEM file with the certificate authority for client certificates."),
    Setting(
        "amqps.verify_peer",
        Boolean(),
        default=False,
        help="Refuse TLS clients without a certificate of that authority.",
    ),
    Setting(
        "amqps.login_from",
        Choice("distinguished_name", "common_name"),
        "distinguished_name",
        "Part of a client's certificate that names the user (SASL EXTERNAL).",
    ),
    Setting(
        "amqp10.strict",
        Boolean(),
        default=False,
        help="Enforce rules of AMQP 1.0 that RabbitMQ waives (see docs/reference/amqp-1.0.md).",
        reloads=True,
    ),
    Setting(
        "amqp10.auto_create",
        Boolean(),
        default=False,
        help="Declare a durable queue for an AMQP 1.0 address that names no queue.",
        reloads=True,
    ),
    Setting(
        "management.enabled",
        Boolean(),
        default=False,
        help="Serve RabbitMQ's management API and metrics. (`up` does so at its HTTP port.)",
    ),
    Setting("management.host", Text(255), "127.0.0.1", "Address to listen on for the management API."),
    Setting("management.port", PORT, 15_672, "Port for the management API; 0 chooses a free port."),
    Setting("management.certificate", FileName(), None, "PEM file with the certificate chain for HTTPS."),
    Setting("management.key", FileName(), None, "PEM file with the private key of the certificate."),
    Setting("http.host", Text(255), "127.0.0.1", "Address to listen on for HTTP."),
    Setting("http.port", PORT, 8080, "Port for HTTP; 0 chooses a free port."),
    Setting("http.certificate", FileName(), None, "PEM file with the certificate chain for HTTPS."),
    Setting("http.key", FileName(), None, "PEM file with the private key of the certificate."),
    Setting(
        "http.allow_private_webhooks",
        Boolean(),
        default=False,
        help="Allow webhooks to private addresses, and without TLS.",
    ),
    Setting(
        "http.codec_keys",
        FileName(),
        None,
        "File with keys to encrypt and decrypt payloads for tools. Needs API keys.",
    ),
    Setting(
        "http.redact",
        NameList(),
        (),
        "Hide arguments with this name in all output; may contain *. '*' hides all arguments.",
    ),
    Setting(
        "http.request_limit",
        COUNT,
        None,
        "Maximum requests of an API key, or of an address without one, in a window.  [default: no limit]",
    ),
    Setting("http.request_window_s", Integer(1, 86_400), 60, "Length of that window, in seconds."),
    Setting(
        "http.leased_memory",
        Size(1 << 20, 1 << 40),
        64 << 20,
        "Memory of the jobs that workers have fetched and not ended, from which on they get no more.",
    ),
    Setting("http.region", Text(64), None, "The region of this server, in a federation. Refuse jobs of others."),
    Setting(
        "http.trace_url",
        TraceAddress(),
        None,
        "URL of a trace in your tracing system; {trace_id} is replaced by the id of the trace.",
    ),
    Setting(
        "alarms.memory_limit",
        Size(1, 1 << 50),
        None,
        "Maximum message content in memory before publishers must wait.  [default: 128 MiB; 1 GiB without a disk]",
        reloads=True,
    ),
    Setting(
        "alarms.disk_free_limit",
        Size(0, 1 << 50),
        64 << 20,
        "Free disk space below which publishers must wait.",
        reloads=True,
    ),
    Setting(
        "log.level",
        Choice("debug", "info", "warning", "error"),
        "info",
        "Minimum level of log records.  [default: info; `up`: warning]",
        reloads=True,
    ),
    Setting("log.format", Choice("text", "json"), "text", "Format of log lines.", reloads=True),
    *LIMITS,
)
