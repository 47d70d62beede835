"""A camera that takes WS-Discovery at its word (WSDiscovery), with a device service written by hand.

It answers a probe only if types and scopes fit by namespace, late and twice. `hello` announces it, `bye` takes its leave
without going, `off` goes without taking its leave, `greeted` waits until it has been asked for its time once more.
"""

import argparse
import logging
import re
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import wsdiscovery.threaded
from wsdiscovery import QName, Scope
from wsdiscovery.publishing import ThreadedWSPublishing

import peer

NETWORK = "http://www.onvif.org/ver10/network/wsdl"
ANSWERS = {
    "GetSystemDateAndTime": """<tds:SystemDateAndTime><tt:DateTimeType>Manual</tt:DateTimeType>
      <tt:DaylightSavings>false</tt:DaylightSavings><tt:UTCDateTime>
      <tt:Time><tt:Hour>1</tt:Hour><tt:Minute>2</tt:Minute><tt:Second>3</tt:Second></tt:Time>
      <tt:Date><tt:Year>2001</tt:Year><tt:Month>2</tt:Month><tt:Day>3</tt:Day></tt:Date>
      </tt:UTCDateTime></tds:SystemDateAndTime>""",
    "GetDeviceInformation": """<tds:Manufacturer>Strict &amp; Sons</tds:Manufacturer><tds:Model>S-1</tds:Model>
      <tds:FirmwareVersion>0.9</tds:FirmwareVersion><tds:SerialNumber>42</tds:SerialNumber>
      <tds:HardwareId>s</tds:HardwareId>""",
    "GetScopes": """<tds:Scopes><tt:ScopeDef>Fixed</tt:ScopeDef>
      <tt:ScopeItem>onvif://www.onvif.org/name/Strict%20One</tt:ScopeItem></tds:Scopes>""",
}
FAULT = """<s:Fault><s:Code><s:Value>s:Receiver</s:Value></s:Code>
  <s:Reason><s:Text xml:lang="en">not implemented</s:Text></s:Reason></s:Fault>"""
ENVELOPE = """<?xml version="1.0" encoding="utf-8"?>
<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:tds="http://www.onvif.org/ver10/device/wsdl"
  xmlns:tt="http://www.onvif.org/ver10/schema"><s:Body>{}</s:Body></s:Envelope>"""


class DeviceService(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    greeted = threading.Semaphore(0)

    def do_POST(self):
        request = self.rfile.read(int(self.headers["Content-Length"])).decode()
        operation = re.search(r"Get[A-Za-z]+", request)
        operation = operation and operation.group()
        if operation == "GetSystemDateAndTime":
            self.greeted.release()
        if operation in ANSWERS:
            status, inside = 200, f"<tds:{operation}Response>{ANSWERS[operation]}</tds:{operation}Response>"
        else:
            status, inside = 500, FAULT
        body = ENVELOPE.format(inside).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/soap+xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    # The library's own looks up the name of the address, which has none.
    def server_bind(self):
        socketserver.TCPServer.server_bind(self)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--address", required=True)
    options.add_argument("--uuid", required=True)
    options.add_argument("--scope", action="append", default=["onvif://www.onvif.org/name/Strict%20One"])
    options.add_argument("--xaddr", action="append", help="what it announces, if not the truth")
    options.add_argument("--silent", action="store_true", help="not published before `hello`")
    options = options.parse_args()
    logging.disable()

    server = Server((options.address, 80), DeviceService)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    # A probe over IPv6 ends the library's thread for IPv4, which would send the answer.
    def left_out(_):
        raise OSError("IPv6 is left out")

    wsdiscovery.threaded.NetworkingThreadIPv6.start = left_out
    wsd = ThreadedWSPublishing(uuid_=f"urn:uuid:{options.uuid}")
    wsd.start()

    def hello():
        wsd.publishService(
            types=[QName(NETWORK, "NetworkVideoTransmitter")],
            scopes=[Scope(scope) for scope in options.scope],
            xAddrs=options.xaddr or [f"http://{options.address}/onvif/device_service"],
        )

    if not options.silent:
        hello()

    def off():
        server.shutdown()
        server.server_close()

    def bye():
        # What was asked before does not count.
        while DeviceService.greeted.acquire(blocking=False):
            pass
        wsd.clearLocalServices()

    def greeted():
        DeviceService.greeted.acquire()
        peer.say("greeted")

    peer.obey(hello=hello, bye=bye, off=off, greeted=greeted)


main()
