"""A gRPC C-core client and server without generated code: the other half of wire.rs.

client SOCKET AUTHORITY  asks a device plugin everything, prints JSON; AUTHORITY "" leaves what C-core makes of the path
server FOLDER            is PodResources and Registration in FOLDER; prints a line when it listens and one for each
                         Register; ends with standard input
"""
import json
import os
import sys
from concurrent import futures

import grpc


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def field(number, value):
    """A length-delimited field, or a varint."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def read_varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return number, at


def fields(data):
    """The fields of a message: number to list of values."""
    found, at = {}, 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
        else:
            assert tag & 7 == 2, "only varints and texts are used"
            size, at = read_varint(data, at)
            value, at = data[at:at + size], at + size
        found.setdefault(tag >> 3, []).append(value)
    return found


def text(message, number):
    return message.get(number, [b""])[0].decode()


def client(socket, authority):
    options = [("grpc.default_authority", authority)] if authority else []
    with grpc.insecure_channel("unix:" + socket, options=options) as channel:
        service = "/v1beta1.DevicePlugin/"

        def call(name, request):
            return fields(channel.unary_unary(service + name)(request, timeout=10))

        options = call("GetDevicePluginOptions", b"")
        lists = channel.unary_stream(service + "ListAndWatch")(b"", timeout=10)
        devices = [fields(device) for device in fields(next(lists)).get(1, [])]
        ids = [text(device, 1) for device in devices]
        size = 1
        asked = b"".join(field(1, i) for i in ids) + field(3, size)
        preferred = fields(call("GetPreferredAllocation", field(1, asked))[1][0])
        asked = b"".join(field(1, i) for i in ids[:1])
        given = fields(call("Allocate", field(1, asked))[1][0])
        try:
            call("Allocate", field(1, field(1, "nobody")))
            refused = None
        except grpc.RpcError as error:
            refused = [error.code().name, error.details()]
        lists.cancel()
        print(json.dumps({
            "preferred_available": options.get(2, [0])[0],
            "devices": {text(d, 1): text(d, 2) for d in devices},
            "preferred": [i.decode() for i in preferred.get(1, [])],
            "envs": {text(e, 1): text(e, 2) for e in map(fields, given.get(1, []))},
            "nodes": [[text(d, 1), text(d, 2), text(d, 3)] for d in map(fields, given.get(3, []))],
            "refused": refused,
        }))


def server(folder):
    def listed(request, context):
        # One thing of everything a newer kubelet adds: fields that the reader does not know.
        devices = field(1, "akri.sh/c") + field(2, "c-0") + field(3, field(1, field(1, 1)))
        container = field(1, "main") + field(2, devices) + field(3, varint(5)) + field(5, field(1, "claim"))
        return field(1, field(1, "pod") + field(2, "default") + field(3, container))

    def register(request, context):
        request = fields(request)
        print(json.dumps([text(request, 1), text(request, 2), text(request, 3)]), flush=True)
        return b""

    handlers = {
        "pod-resources": ("v1.PodResourcesLister", "List", listed),
        "device-plugins": ("v1beta1.Registration", "Register", register),
    }
    serving = grpc.server(futures.ThreadPoolExecutor(2))
    for place, (service, name, answer) in handlers.items():
        methods = {name: grpc.unary_unary_rpc_method_handler(answer)}
        serving.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        os.makedirs(os.path.join(folder, place), exist_ok=True)
        serving.add_insecure_port("unix:" + os.path.join(folder, place, "kubelet.sock"))
    serving.start()
    print("ready", flush=True)
    sys.stdin.read()
    serving.stop(None).wait()


def main():
    mode, *rest = sys.argv[1:]
    try:
        {"client": client, "server": server}[mode](*rest)
    except grpc.RpcError as error:
        print(json.dumps({"error": error.code().name}))


main()
