"""A discovery handler for Akri, on C-core, made from the protocol: the other half of external.rs.

external.py FOLDER NAME SOCKET   serves on FOLDER/SOCKET; prints `ready`; lines of its input:
  register                       registers as NAME with the agent of FOLDER, as C-core names it by default; prints `registered`
  set ID…                        these are the devices from now on; prints `set`
  fill COUNT BYTES               so many devices from now on, each with a property of that length; prints `filled`
  asked                          prints how many streams are open
"""
import os
import sys
import threading
from concurrent import futures

import grpc

sys.path.insert(0, os.environ["PROTO"])
protos, services = grpc.protos_and_services("discovery.proto")


class Handler(services.DiscoveryHandlerServicer):
    def __init__(self):
        self.changed = threading.Condition()
        self.ids, self.text, self.version, self.open = [], {}, 0, 0

    def set(self, ids, text={}):
        with self.changed:
            self.ids, self.text, self.version = ids, text, self.version + 1
            self.changed.notify_all()

    def Discover(self, request, context):
        with self.changed:
            self.open += 1
        said = None
        try:
            while context.is_active():
                with self.changed:
                    self.changed.wait_for(lambda: self.version != said, timeout=0.2)
                    if self.version == said:
                        continue
                    said, ids, text = self.version, list(self.ids), self.text
                details = request.discovery_details.strip()
                user = request.discovery_properties["user"].vec.decode() if "user" in request.discovery_properties else ""
                yield protos.DiscoverResponse(
                    devices=[protos.Device(id=id, properties={"PY_ID": id, "PY_DETAILS": details, "PY_USER": user, **text}) for id in ids]
                )
        finally:
            with self.changed:
                self.open -= 1


def main():
    folder, name, socket = sys.argv[1:]
    handler, path = Handler(), os.path.join(folder, socket)
    # Each session has a thread as long as it lasts.
    server = grpc.server(futures.ThreadPoolExecutor(32))
    services.add_DiscoveryHandlerServicer_to_server(handler, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    print("ready", flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "register":
            with grpc.insecure_channel(f"unix:{folder}/agent-registration.sock") as channel:
                services.RegistrationStub(channel).RegisterDiscoveryHandler(
                    protos.RegisterDiscoveryHandlerRequest(name=name, endpoint=path, endpoint_type="UDS", shared=True),
                    timeout=10,
                )
            print("registered", flush=True)
        elif command == "set":
            handler.set(words)
            print("set", flush=True)
        elif command == "fill":
            count, length = map(int, words)
            handler.set([f"d{number}" for number in range(count)], {"PY_TEXT": "x" * length})
            print("filled", flush=True)
        elif command == "asked":
            print(handler.open, flush=True)
    server.stop(0)
    os._exit(0)


main()
