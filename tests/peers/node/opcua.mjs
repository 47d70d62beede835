// A Local Discovery Server, or a server that may register with one (node-opcua):
//   opcua.mjs lds --folder DIR --port N --host ADDRESS
//   opcua.mjs server --folder DIR --port N --name NAME --uri URI [--host ADDRESS] [--lds URL]
// The host is the one in its URLs, for a server by default the machine's name. Prints `ready` when it serves and has
// registered, and shuts down when its input ends.

import { createRequire } from "node:module";
import path from "node:path";
import { parseArgs } from "node:util";

// `make setup-test` installs the packages there.
const { OPCUACertificateManager, OPCUADiscoveryServer, OPCUAServer, RegisterServerMethod } = createRequire(
  path.join(process.env.LEAFHOST_NODE, "package.json"),
)("node-opcua");

// The library's output goes to standard error.
const { log } = console;
console.log = console.info = console.error;

const text = { type: "string" };
const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: { folder: text, port: text, host: text, name: text, uri: text, lds: text },
});
const shared = {
  port: Number(values.port),
  hostname: values.host,
  certificateFile: path.join(values.folder, "certificate.pem"),
  serverCertificateManager: new OPCUACertificateManager({
    rootFolder: path.join(values.folder, "pki"),
    automaticallyAcceptUnknownCertificate: true,
  }),
};
const server =
  positionals[0] === "lds"
    ? new OPCUADiscoveryServer(shared)
    : new OPCUAServer({
        ...shared,
        resourcePath: "/UA/Peer",
        serverInfo: {
          applicationName: { text: values.name },
          applicationUri: values.uri,
          productUri: "urn:leafhost:peer",
        },
        registerServerMethod: values.lds ? RegisterServerMethod.LDS : RegisterServerMethod.HIDDEN,
        discoveryServerEndpointUrl: values.lds,
      });
const registered = values.lds && new Promise((resolve) => server.once("serverRegistered", resolve));
await server.start();
await registered;
log("ready");
for await (const _ of process.stdin);
await server.shutdown();
process.exit(0);
