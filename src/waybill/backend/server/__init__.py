"""The HTTP/1.1 server: bytes of a socket in, requests to an application, its answers out."""
