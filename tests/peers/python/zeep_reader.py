"""What another ONVIF client (onvif-zeep) reads from a camera, as JSON: `zeep_reader.py HOST PORT [USER PASSWORD]`."""

import json
import pathlib
import sys

import onvif
from onvif import ONVIFCamera


def main():
    host, port, *credentials = sys.argv[1:]
    user, password = credentials or ("", "")
    # The descriptions are beside the package, wherever that is.
    wsdl = pathlib.Path(onvif.__file__).parent.parent / "wsdl"
    device = ONVIFCamera(host, int(port), user, password, str(wsdl)).create_devicemgmt_service()
    information = device.GetDeviceInformation()
    print(
        json.dumps(
            {
                "manufacturer": information.Manufacturer,
                "model": information.Model,
                "firmware": information.FirmwareVersion,
                "serial": information.SerialNumber,
                "macs": [one.Info.HwAddress for one in device.GetNetworkInterfaces()],
                "scopes": [one.ScopeItem for one in device.GetScopes()],
            }
        )
    )


main()
