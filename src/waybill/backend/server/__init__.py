"""The HTTP/1.1 server: reads requests from sockets, passes them to an application, and writes its answers."""
