"""An OPC UA server (asyncua): `--certificate` adds endpoints with security. Others may register with it."""

import argparse
import asyncio
import logging
import pathlib
import sys
import tempfile

from asyncua import Server, ua
from asyncua.crypto.cert_gen import setup_self_signed_certificate
from cryptography.x509.oid import ExtendedKeyUsageOID

import peer


async def main():
    options = argparse.ArgumentParser()
    options.add_argument("--url", required=True)
    options.add_argument("--uri", required=True)
    options.add_argument("--name", required=True)
    options.add_argument("--certificate", action="store_true")
    options.add_argument("--register", help="the URL of a discovery server")
    options = options.parse_args()
    logging.disable()

    server = Server()
    await server.init()
    server.set_endpoint(options.url)
    await server.set_application_uri(options.uri)
    server.set_server_name(options.name)
    server.set_security_policy([ua.SecurityPolicyType.NoSecurity])
    with tempfile.TemporaryDirectory() as folder:
        if options.certificate:
            key, certificate = pathlib.Path(folder, "key.pem"), pathlib.Path(folder, "certificate.der")
            await setup_self_signed_certificate(
                key, certificate, options.uri, "peer", [ExtendedKeyUsageOID.SERVER_AUTH], {"commonName": options.name}
            )
            await server.load_certificate(str(certificate))
            await server.load_private_key(str(key))
            server.set_security_policy(
                [
                    ua.SecurityPolicyType.NoSecurity,
                    ua.SecurityPolicyType.Basic256Sha256_Sign,
                    ua.SecurityPolicyType.Basic256Sha256_SignAndEncrypt,
                ]
            )
        async with server:
            if options.register:
                await server.register_to_discovery(options.register, period=5)
            peer.say("ready")
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main())
