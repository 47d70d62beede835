//! Fake server: replays recorded bytes where they are constant, and encodes with the library the parts that a test chooses.

use std::rc::Rc;
use std::time::Duration;

use leafhost_sdk::testing::{FakeHost, TcpReaction};
use opcua_types::{
    ApplicationDescription, ApplicationType, BinaryDecodable, BinaryEncodable, ContextOwned,
    DecodingOptions, EndpointDescription, FindServersOnNetworkResponse, FindServersRequest,
    FindServersResponse, GetEndpointsRequest, GetEndpointsResponse, MessageInfo,
    MessageSecurityMode, NamespaceMap, NodeId, ResponseHeader, ServerOnNetwork, ServiceFault,
    StatusCode, TypeLoaderCollection, UAString, UserTokenPolicy, UserTokenType,
};

const HELLO: &[u8] = include_bytes!("../../fixtures/node-lds-hello.bin");
const CHANNEL: &[u8] = include_bytes!("../../fixtures/node-lds-channel.bin");
/// Channel and token of the recording.
const CHANNEL_ID: u32 = 4;

/// Answers of a server.
#[derive(Debug, Clone, Default)]
pub struct Fake {
    applications: Vec<ApplicationDescription>,
    records: Option<Vec<ServerOnNetwork>>,
    endpoints: Vec<EndpointDescription>,
    fault: Option<StatusCode>,
    chunk: Option<usize>,
    slow: Duration,
    no_endpoints: bool,
    by_its_url: bool,
    mirrors: bool,
    no_records: Option<StatusCode>,
    endpoints_by: Option<String>,
    refusal: Option<Vec<u8>>,
}

/// Creates an application that a server lists.
pub fn application(
    uri: &str,
    name: &str,
    kind: ApplicationType,
    urls: &[&str],
) -> ApplicationDescription {
    ApplicationDescription {
        application_uri: uri.into(),
        product_uri: "urn:product".into(),
        application_name: name.into(),
        application_type: kind,
        discovery_urls: Some(urls.iter().map(|&url| UAString::from(url)).collect()),
        ..ApplicationDescription::default()
    }
}

impl Fake {
    /// Creates a server that lists nothing and has no endpoints.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a server that lists itself.
    pub fn server(uri: &str, name: &str, url: &str) -> Self {
        Self::new()
            .lists(application(uri, name, ApplicationType::Server, &[url]))
            .endpoint(uri)
    }

    /// Creates a discovery server.
    pub fn discovery(url: &str) -> Self {
        let own = application("urn:lds", "LDS", ApplicationType::DiscoveryServer, &[url]);
        Self::new().lists(own).endpoint("urn:lds")
    }

    pub fn lists(mut self, application: ApplicationDescription) -> Self {
        self.applications.push(application);
        self
    }

    /// Lists a server as a registered one.
    pub fn knows(self, uri: &str, name: &str, url: &str) -> Self {
        self.lists(application(uri, name, ApplicationType::Server, &[url]))
    }

    pub fn recorded(mut self, url: &str) -> Self {
        self.records.get_or_insert_default().push(ServerOnNetwork {
            record_id: 7,
            server_name: "from the network".into(),
            discovery_url: url.into(),
            server_capabilities: Some(vec!["DA".into()]),
        });
        self
    }

    pub fn endpoint(mut self, uri: &str) -> Self {
        self.endpoints = [
            (MessageSecurityMode::None, "None"),
            (MessageSecurityMode::Sign, "Basic256Sha256"),
        ]
        .into_iter()
        .map(|(mode, policy)| EndpointDescription {
            server: application(uri, "", ApplicationType::Server, &[]),
            security_mode: mode,
            security_policy_uri: format!("http://opcfoundation.org/UA/SecurityPolicy#{policy}")
                .into(),
            user_identity_tokens: Some(vec![UserTokenPolicy {
                token_type: UserTokenType::UserName,
                ..UserTokenPolicy::default()
            }]),
            ..EndpointDescription::default()
        })
        .collect();
        self
    }

    pub fn without_endpoints(mut self) -> Self {
        self.endpoints.clear();
        self
    }

    /// Lists endpoints only for requests with this URL.
    pub fn endpoints_by(mut self, url: &str) -> Self {
        self.endpoints_by = Some(url.to_owned());
        self
    }

    /// Answers the request for a channel with these bytes and closes the connection.
    pub fn refuses(mut self, answer: Vec<u8>) -> Self {
        self.refusal = Some(answer);
        self
    }

    /// Answers `GetEndpoints` with a fault.
    pub fn faults_at_endpoints(mut self) -> Self {
        self.no_endpoints = true;
        self
    }

    /// Lists itself by the requested URL, as node-opcua's discovery server does.
    pub fn calls_itself_as_asked(mut self) -> Self {
        self.by_its_url = true;
        self
    }

    /// Writes the requested URL, if there is one, into every entry, as open62541 does.
    pub fn mirrors_the_request(mut self) -> Self {
        self.mirrors = true;
        self
    }

    /// Answers `FindServersOnNetwork` with a fault of this status.
    pub fn faults_at_records(mut self, status: StatusCode) -> Self {
        self.no_records = Some(status);
        self
    }

    /// Returns the encoded list.
    pub fn list(&self) -> Vec<u8> {
        encode(&FindServersResponse {
            servers: Some(self.applications.clone()),
            ..FindServersResponse::default()
        })
    }

    /// Answers every service with this fault.
    pub fn faults(mut self, status: StatusCode) -> Self {
        self.fault = Some(status);
        self
    }

    /// Cuts answers into chunks of that many bytes.
    pub fn in_chunks(mut self, bytes: usize) -> Self {
        self.chunk = Some(bytes);
        self
    }

    /// Delays every answer but the one to Hello.
    pub fn slow(mut self, time: Duration) -> Self {
        self.slow = time;
        self
    }

    /// Adds the server to the network.
    pub fn at(self, host: FakeHost, address: &str) -> FakeHost {
        let fake = Rc::new(self);
        host.tcp_server(address, move || {
            let fake = Rc::clone(&fake);
            Box::new(move |bytes| fake.react(bytes))
        })
    }

    /// Returns the reaction to these bytes.
    pub fn react(&self, bytes: &[u8]) -> TcpReaction {
        if let (Some(refusal), true) = (&self.refusal, bytes.starts_with(b"OPN")) {
            return TcpReaction {
                send: refusal.clone(),
                close: true,
                ..TcpReaction::default()
            };
        }
        let send = match bytes.get(..3) {
            Some(b"HEL") => HELLO.to_vec(),
            Some(b"OPN") => opened(bytes),
            Some(b"MSG") => self.answer(bytes),
            Some(b"CLO") => {
                return TcpReaction {
                    close: true,
                    ..TcpReaction::default()
                };
            }
            _ => Vec::new(),
        };
        let after = if bytes.starts_with(b"HEL") {
            Duration::ZERO
        } else {
            self.slow
        };
        TcpReaction {
            send,
            after,
            ..TcpReaction::default()
        }
    }

    fn answer(&self, request: &[u8]) -> Vec<u8> {
        let number = u32::from_le_bytes(request[20..24].try_into().unwrap());
        let service = u16::from_le_bytes(request[26..28].try_into().unwrap());
        let body = match (service, &self.records, self.fault) {
            (_, _, Some(status)) => fault(status),
            (422, ..) if self.mirrors => {
                let asked: FindServersRequest = decode(&request[24..]);
                let mut fake = self.clone();
                if !asked.endpoint_url.is_empty() {
                    for application in &mut fake.applications {
                        application.discovery_urls = Some(vec![asked.endpoint_url.clone()]);
                    }
                }
                fake.list()
            }
            (422, ..) if self.by_its_url => {
                let asked: FindServersRequest = decode(&request[24..]);
                let mut fake = self.clone();
                fake.applications[0].discovery_urls = Some(vec![asked.endpoint_url]);
                fake.list()
            }
            (422, ..) => self.list(),
            (12_208, ..) if self.no_records.is_some() => fault(self.no_records.unwrap()),
            (428, ..) if !self.no_endpoints => {
                let asked: GetEndpointsRequest = decode(&request[24..]);
                let by = self.endpoints_by.as_deref();
                let knows = by.is_none_or(|url| asked.endpoint_url.as_ref() == url);
                encode(&GetEndpointsResponse {
                    endpoints: knows.then(|| self.endpoints.clone()),
                    ..GetEndpointsResponse::default()
                })
            }
            (12_208, Some(records), _) => encode(&FindServersOnNetworkResponse {
                servers: Some(records.clone()),
                ..FindServersOnNetworkResponse::default()
            }),
            _ => fault(StatusCode::BadServiceUnsupported),
        };
        chunks(number, &body, self.chunk.unwrap_or(60_000))
    }
}

/// Returns the recorded answer with the number of the request.
pub fn opened(request: &[u8]) -> Vec<u8> {
    let mut bytes = CHANNEL.to_vec();
    bytes[71..79].copy_from_slice(&request[71..79]);
    bytes
}

pub fn hello() -> Vec<u8> {
    HELLO.to_vec()
}

/// Returns an answer on the recorded channel.
pub fn chunks(number: u32, body: &[u8], size: usize) -> Vec<u8> {
    let mut pieces = body.chunks(size).peekable();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next() {
        let last = if pieces.peek().is_none() { b'F' } else { b'C' };
        bytes.extend(chunk(last, number, piece));
    }
    bytes
}

pub fn chunk(part: u8, number: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"MSG".to_vec();
    bytes.push(part);
    for field in [
        24 + u32::try_from(body.len()).unwrap(),
        CHANNEL_ID,
        1,
        99,
        number,
    ] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

/// Returns the message that refuses a connection.
pub fn error(status: StatusCode) -> Vec<u8> {
    let mut bytes = b"ERRF".to_vec();
    for field in [16, status.bits(), u32::MAX] {
        bytes.extend(field.to_le_bytes());
    }
    bytes
}

pub fn fault(status: StatusCode) -> Vec<u8> {
    let response_header = ResponseHeader {
        service_result: status,
        ..ResponseHeader::default()
    };
    encode(&ServiceFault { response_header })
}

fn decode<T: BinaryDecodable>(bytes: &[u8]) -> T {
    let owned = ContextOwned::new(
        NamespaceMap::new(),
        TypeLoaderCollection::new_empty(),
        DecodingOptions::default(),
    );
    let context = owned.context();
    let mut rest = bytes;
    NodeId::decode(&mut rest, &context).unwrap();
    T::decode(&mut rest, &context).unwrap()
}

pub fn encode<T: BinaryEncodable + MessageInfo>(message: &T) -> Vec<u8> {
    let owned = ContextOwned::new(
        NamespaceMap::new(),
        TypeLoaderCollection::new_empty(),
        DecodingOptions::default(),
    );
    let context = owned.context();
    let mut bytes = NodeId::from(&message.type_id()).encode_to_vec(&context);
    bytes.extend(message.encode_to_vec(&context));
    bytes
}
