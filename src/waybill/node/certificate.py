"""The user that a TLS certificate names: a part of its subject is the user's name."""

from typing import Final

DISTINGUISHED_NAME: Final = "distinguished_name"
COMMON_NAME: Final = "common_name"
LOGIN_FROM: Final = (DISTINGUISHED_NAME, COMMON_NAME)

# The attributes that have a short name (RFC 4514, section 3); others appear as OpenSSL calls them.
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_SPECIAL: Final = frozenset(',+"\\<>;')


def certificate_user(certificate: dict[str, object] | None, login_from: str) -> str:
    """The user that a verified certificate (in the form of `ssl.SSLSocket.getpeercert`) names; empty for none.

    `login_from` is "distinguished_name" (RabbitMQ's default: the subject as RFC 4514 writes it, most specific first,
    like `CN=worker,O=Example`) or "common_name". With two common names, the latter names no user.
    """
    if not certificate:
        return ""
    subject = certificate.get("subject")
    attributes: list[tuple[str, str]] = []
    for relative in subject if isinstance(subject, tuple) else ():
        attributes.extend((str(name), str(value)) for name, value in relative)
    if login_from == COMMON_NAME:
        names = [value for name, value in attributes if name == "commonName"]
        return names[0] if len(names) == 1 else ""
    return ",".join(f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}" for name, value in reversed(attributes))


def _escaped(value: str) -> str:
    """Escape a value as in RFC 4514, 2.4, so that it cannot look like another attribute."""
    text = "".join("\\" + character if character in _SPECIAL else character for character in value)
    if text.startswith((" ", "#")):
        text = "\\" + text
    if text.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text.replace("\0", "\\00")
