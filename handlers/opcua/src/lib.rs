//! The `opcua` discovery handler: OPC UA servers by discovery URLs.
