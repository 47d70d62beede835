"""Asks once, as a Windows computer does, who is there, and says as JSON from where answers came within a second and a half.

The prefix matters: wsdd compares the text. For peers that can't say `ready`, and to see that one is there which others don't see.
"""

import json
import socket
import uuid

PROBE = """<?xml version="1.0" encoding="utf-8"?>
<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:a="http://schemas.xmlsoap.org/ws/2004/08/addressing"
  xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery" xmlns:wsdp="http://schemas.xmlsoap.org/ws/2006/02/devprof">
<s:Header><a:MessageID>urn:uuid:{}</a:MessageID><a:To>urn:schemas-xmlsoap-org:ws:2005:04:discovery</a:To>
<a:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/Probe</a:Action></s:Header>
<s:Body><d:Probe><d:Types>wsdp:Device</d:Types></d:Probe></s:Body></s:Envelope>"""


def main():
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asking.settimeout(1.5)
    asking.sendto(PROBE.format(uuid.uuid4()).encode(), ("239.255.255.250", 3702))
    answers = set()
    try:
        while True:
            _, (address, _) = asking.recvfrom(65536)
            answers.add(address)
    except TimeoutError:
        print(json.dumps(sorted(answers)))


main()
