"""What engines keep beyond a connection: termini of 1.0, sessions of 0-10, branches of distributed transactions."""

from waybill.engine.amqp010.message_format import AMQP010
from waybill.engine.amqp010.sessions import Sessions
from waybill.engine.amqp10.termini import Termini
from waybill.engine.host import Host
from waybill.model.branches import Branches
from waybill.model.virtual_host import VirtualHost


def make_detached_state(host: Host) -> None:
    """Give a node that has its runtime and its limits the registers of what is kept."""
    runtime = host.runtime
    limits = host.limits
    host.termini = Termini(runtime)
    host.termini.kept_per_user_max = limits.kept_links_per_user_max
    host.termini.durable_per_user_max = limits.durable_links_per_user_max
    host.sessions = Sessions(runtime)
    host.branches = Branches(runtime, AMQP010, limits.held_per_connection_max, limits.transaction_units_max)


def release_detached_state(host: Host) -> None:
    """The node stops: what is kept returns its deliveries to the queues, as delivered before."""
    host.termini.release_all()
    host.sessions.release_all()
    host.branches.release_all()


def recover_detached_state(host: Host, virtual_hosts: dict[str, VirtualHost]) -> None:
    """Bring back what the store has of it. The queues have recovered their messages."""
    host.termini.recover(virtual_hosts)
    host.branches.recover(virtual_hosts)
