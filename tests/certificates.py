"""Certificates made on the fly, by an authority that exists for one test run."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

__all__ = ["Certificates"]


class Certificates:
    """An authority and a server's certificate for 127.0.0.1. ``folder`` takes the files that settings name."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1")
        client = authority.issue_cert("client@example.org")
        self.ca_file = str(folder / "ca.pem")
        authority.cert_pem.write_to_path(self.ca_file)
        self.server_file = str(folder / "server.pem")
        self.server_key_file = str(folder / "server-key.pem")
        server.cert_chain_pems[0].write_to_path(self.server_file)
        server.private_key_pem.write_to_path(self.server_key_file)
        self.client_file = str(folder / "client.pem")
        self.client_key_file = str(folder / "client-key.pem")
        client.cert_chain_pems[0].write_to_path(self.client_file)
        client.private_key_pem.write_to_path(self.client_key_file)
        self._server = server

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.configure_cert(context)
        return context
