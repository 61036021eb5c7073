"""TLS contexts with safe defaults: TLS 1.2 or newer, peers verified."""

import ssl
from pathlib import Path


def server_context(
    certificate: Path, key: Path, *, client_authority: Path | None = None, require_client: bool = False
) -> ssl.SSLContext:
    """A context for listeners. With `client_authority`, clients may (`require_client`: must) show a certificate of it.

    Raises OSError or ssl.SSLError if a file cannot be read or does not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if client_authority is not None:
        context.load_verify_locations(client_authority)
        context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_OPTIONAL
    return context


def client_context(
    *, authority: Path | None = None, certificate: Path | None = None, key: Path | None = None, verify: bool = True
) -> ssl.SSLContext:
    """A context for clients. `authority` replaces the system's certificate authorities; `verify=False` accepts all."""
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
