// A Local Discovery Server, or a server that registers with one (node-opcua):
//   opcua.mjs lds FOLDER PORT
//   opcua.mjs server FOLDER PORT NAME URI [URL-OF-LDS]
// Says `ready` when it serves and registered, and ends in good order with its input.

import path from "node:path";
import { createRequire } from "node:module";

// The packages are where `make setup-test` has put them.
const { OPCUACertificateManager, OPCUADiscoveryServer, OPCUAServer, RegisterServerMethod } = createRequire(
  path.join(process.env.LEAFHOST_NODE, "package.json"),
)("node-opcua");

const [role, folder, port, name, uri, lds] = process.argv.slice(2);
const certificates = new OPCUACertificateManager({
  rootFolder: path.join(folder, "pki"),
  automaticallyAcceptUnknownCertificate: true,
});
const certificateFile = path.join(folder, "certificate.pem");
let server;
if (role === "lds") {
  server = new OPCUADiscoveryServer({ port: Number(port), serverCertificateManager: certificates, certificateFile });
} else {
  server = new OPCUAServer({
    port: Number(port),
    resourcePath: "/UA/Peer",
    serverCertificateManager: certificates,
    serverInfo: { applicationName: { text: name }, applicationUri: uri, productUri: "urn:leafhost:peer" },
    registerServerMethod: lds ? RegisterServerMethod.LDS : RegisterServerMethod.HIDDEN,
    discoveryServerEndpointUrl: lds,
  });
}
const registered = lds ? new Promise((resolve) => server.once("serverRegistered", resolve)) : undefined;
await server.start();
await registered;
console.log("ready");
for await (const _ of process.stdin);
await server.shutdown();
process.exit(0);
