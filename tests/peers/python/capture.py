"""Sees what leaves this network namespace. At the end of its input it prints each datagram and connection as JSON.

An entry has `protocol` (a number or a name), `to`, `port`, `times`: when each packet left, in seconds from the start, and
`texts`: which of the command line's texts were seen in it.
"""

import json
import select
import socket
import sys
import time

import peer

ETH_P_ALL = 3
PACKET_OUTGOING = 4
UDP, TCP = 17, 6


def name_of(frame, kind):
    """Where a packet goes: protocol, address, port."""
    if kind == 0x0806:
        return ("arp", socket.inet_ntop(socket.AF_INET, frame[24:28]), 0)
    if kind == 0x0800:
        protocol, to = frame[9], socket.inet_ntop(socket.AF_INET, frame[16:20])
        rest = frame[(frame[0] & 15) * 4 :]
    elif kind == 0x86DD:
        protocol, to, rest = frame[6], socket.inet_ntop(socket.AF_INET6, frame[24:40]), frame[40:]
        # The hop-by-hop header of multicast reports.
        if protocol == 0:
            protocol = rest[0]
    else:
        return (f"ethertype {kind:#x}", "", 0)
    port = int.from_bytes(rest[2:4], "big") if protocol in (UDP, TCP) else 0
    return ({UDP: "udp", TCP: "tcp", 1: "icmp", 2: "igmp", 58: "icmp6"}.get(protocol, str(protocol)), to, port)


def main():
    # Without the link's header, which is of no interest.
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
    seen, start = {}, time.monotonic()
    texts = sys.argv[1:]
    peer.say("ready")
    running = True
    while running:
        readable, _, _ = select.select([packets, sys.stdin], [], [])
        running = sys.stdin not in readable
        # What has left before the end is seen before the end.
        while packets in (readable if running else select.select([packets], [], [], 0)[0]):
            frame, (interface, kind, direction, *_) = packets.recvfrom(65536)
            if direction == PACKET_OUTGOING and interface != "lo":
                times, found = seen.setdefault(name_of(frame, kind), ([], set()))
                times.append(time.monotonic() - start)
                found.update(text for text in texts if text.encode() in frame)
            readable = []
    flows = [
        {"protocol": protocol, "to": to, "port": port, "times": times, "texts": sorted(found)}
        for (protocol, to, port), (times, found) in seen.items()
    ]
    peer.say(json.dumps(flows))


main()
