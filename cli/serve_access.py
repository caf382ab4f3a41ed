"""What ``stepwell serve`` looks at before it loads a model: certificates, key files, and whether the door is open."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

import msgspec

from stepwell.cli.logs import log
from stepwell.core.config import Config
from stepwell.core.config_load import Resolved
from stepwell.core.errors import UserError
from stepwell.transports.gateway.key_file import keys_of


def with_files(resolved: Resolved, config: Config) -> Config:
    """``config`` with names of files as they are seen from here: a configuration file names them from where it is."""
    replace = msgspec.structs.replace

    def seen(path: str, name: str) -> str:
        return str(resolved.base(path) / name) if name else ""

    server, gateway, admin = config.server, config.gateway, config.admin
    return replace(
        config,
        server=replace(
            server,
            tls_certificate=seen("server.tls_certificate", server.tls_certificate),
            tls_key=seen("server.tls_key", server.tls_key),
        ),
        gateway=replace(gateway, key_file=seen("gateway.key_file", gateway.key_file)),
        admin=replace(
            admin,
            token_file=seen("admin.token_file", admin.token_file),
            journal_folder=seen("admin.journal_folder", admin.journal_folder),
        ),
        store=replace(config.store, path=seen("store.path", config.store.path)),
    )


def check_access_files(config: Config) -> None:
    """Raises ``UserError`` for a key file or a certificate that cannot be used."""
    keys_of(config)
    server = config.server
    if server.tls_key and not server.tls_certificate:
        raise UserError("is the key of a certificate: name that too", field="server.tls_certificate")
    if not server.tls_certificate:
        return
    for field, path in (("server.tls_certificate", server.tls_certificate), ("server.tls_key", server.tls_key)):
        if path and not Path(path).is_file():
            raise UserError(f"there is no file {path}", field=field)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.tls_certificate, server.tls_key or None, password="")
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        why = getattr(error, "reason", None) or error
        raise UserError(
            f"{server.tls_certificate} and its key cannot be used: {why}", field="server.tls_certificate"
        ) from None


def warn_if_open(config: Config) -> None:
    """Whoever can reach an address that is not this machine's own may use a server without keys."""
    if config.keys or config.gateway.key_file or _own(config.server.host):
        return
    log(
        "warning",
        "no keys are configured: whoever can reach this address may use the model; see `stepwell keys --help`",
        host=config.server.host,
    )


def _own(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
