//! The `onvif` discovery handler: cameras on the network that speak ONVIF.
