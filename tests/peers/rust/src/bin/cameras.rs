//! Many cameras in one process, each on its own port: for benches and large networks.
//!
//! Written by hand for speed: a camera costs a socket and answers with fixed texts. The first cameras are good; the last ones, as many as
//! `--dripping` says, answer with one byte a second without end. A camera that is switched off refuses connections and answers no probe.
#![allow(missing_docs, reason = "a binary")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{JoinHandle, JoinSet};

const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 255, 250);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xc);
const PORT: u16 = 3702;

/// Options of the cameras.
#[derive(Debug, Clone, Parser)]
struct Cameras {
    /// Address of all cameras, on `eth0`. They use its version of IP and no other.
    #[arg(long)]
    address: IpAddr,
    /// Port of the first camera; the others follow.
    #[arg(long, default_value_t = 10000)]
    port: u16,
    #[arg(long)]
    count: u16,
    /// Number of dripping cameras, the last ones.
    #[arg(long, default_value_t = 0)]
    dripping: u16,
    /// True if the cameras answer no probe.
    #[arg(long)]
    silent: bool,
    /// True if the cameras answer probes at once instead of within 400 ms.
    #[arg(long)]
    at_once: bool,
}

impl Cameras {
    fn url(&self, number: u16) -> String {
        let address = SocketAddr::from((self.address, self.port.saturating_add(number)));
        format!("http://{address}/onvif/device_service")
    }

    /// Returns the multicast address of WS-Discovery.
    fn group(&self) -> Result<SocketAddr> {
        if self.address.is_ipv4() {
            return Ok((GROUP_V4, PORT).into());
        }
        let index = std::fs::read_to_string("/sys/class/net/eth0/ifindex")
            .context("cannot tell the index of eth0")?;
        let index = index
            .trim()
            .parse()
            .context("the index of eth0 is no number")?;
        Ok(SocketAddrV6::new(GROUP_V6, PORT, 0, index).into())
    }

    fn drips(&self, number: u16) -> bool {
        number >= self.count.saturating_sub(self.dripping)
    }

    /// Returns the content of `ProbeMatch`, `Hello` and `Bye`.
    fn about(&self, number: u16) -> String {
        format!(
            "<a:EndpointReference><a:Address>{}</a:Address></a:EndpointReference>\
             <d:Types>dn:NetworkVideoTransmitter tds:Device</d:Types>\
             <d:Scopes>onvif://www.onvif.org/type/NetworkVideoTransmitter onvif://www.onvif.org/name/camera-{number}</d:Scopes>\
             <d:XAddrs>{}</d:XAddrs><d:MetadataVersion>1</d:MetadataVersion>",
            reference(number),
            self.url(number)
        )
    }

    fn probe_match(&self, number: u16, relates_to: &str) -> String {
        let inside = self.about(number);
        envelope(
            "ProbeMatches",
            number,
            &format!("<a:RelatesTo>{relates_to}</a:RelatesTo>"),
            &format!("<d:ProbeMatches><d:ProbeMatch>{inside}</d:ProbeMatch></d:ProbeMatches>"),
        )
    }
}

fn reference(number: u16) -> String {
    format!("urn:uuid:00000000-0000-4000-8000-{number:012x}")
}

/// Returns a message of WS-Discovery.
fn envelope(action: &str, number: u16, header: &str, body: &str) -> String {
    static MESSAGES: AtomicU64 = AtomicU64::new(0);
    let message = MESSAGES.fetch_add(1, Ordering::Relaxed);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <s:Envelope xmlns:s=\"http://www.w3.org/2003/05/soap-envelope\" \
         xmlns:a=\"http://schemas.xmlsoap.org/ws/2004/08/addressing\" \
         xmlns:d=\"http://schemas.xmlsoap.org/ws/2005/04/discovery\" \
         xmlns:dn=\"http://www.onvif.org/ver10/network/wsdl\" \
         xmlns:tds=\"http://www.onvif.org/ver10/device/wsdl\"><s:Header>\
         <a:MessageID>urn:uuid:00000000-{number:04x}-4000-9000-{message:012x}</a:MessageID>{header}\
         <a:To>urn:schemas-xmlsoap-org:ws:2005:04:discovery</a:To>\
         <a:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/{action}</a:Action>\
         </s:Header><s:Body>{body}</s:Body></s:Envelope>"
    )
}

/// Returns the text between `<…name …>` and the next `<`, at its first occurrence.
fn text_of<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let starts = ['>', ' '].into_iter();
    let start = starts.filter_map(|end| xml.find(&format!("{name}{end}")));
    let (_, rest) = xml.get(start.min()?..)?.split_once('>')?;
    rest.split('<').next().map(str::trim)
}

/// Answers each probe for each camera, spread over 400 ms as the standard asks.
async fn answer_probes(crowd: Arc<Crowd>, socket: UdpSocket) -> Result<()> {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; 65536];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).await?;
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned();
        let wanted = text_of(&text, "Types").is_none_or(|types| {
            types.contains("NetworkVideoTransmitter") || types.contains("Device")
        });
        if crowd.cameras.silent || !text.contains("2005/04/discovery/Probe<") || !wanted {
            continue;
        }
        let Some(message) = text_of(&text, "MessageID").map(str::to_owned) else {
            continue;
        };
        let (crowd, socket) = (Arc::clone(&crowd), Arc::clone(&socket));
        tokio::spawn(async move {
            let cameras = &crowd.cameras;
            let step = Duration::from_millis(400)
                .checked_div(cameras.count.into())
                .filter(|_| !cameras.at_once)
                .unwrap_or_default();
            for number in 0..cameras.count {
                tokio::time::sleep(step).await;
                if !crowd.listening().contains_key(&number) {
                    continue;
                }
                let reply = cameras.probe_match(number, &message);
                // The client may have gone.
                let _ = socket.send_to(reply.as_bytes(), from).await;
            }
        });
    }
}

/// Returns a camera's answer to an operation; `None` for a fault.
fn result(number: u16, request: &str) -> Option<String> {
    let operation = [
        "GetSystemDateAndTime",
        "GetDeviceInformation",
        "GetNetworkInterfaces",
        "GetScopes",
    ]
    .into_iter()
    .find(|operation| request.contains(operation))?;
    let inside = match operation {
        "GetSystemDateAndTime" => "<tds:SystemDateAndTime><tt:DateTimeType>NTP</tt:DateTimeType>\
             <tt:DaylightSavings>false</tt:DaylightSavings><tt:UTCDateTime>\
             <tt:Time><tt:Hour>12</tt:Hour><tt:Minute>0</tt:Minute><tt:Second>0</tt:Second></tt:Time>\
             <tt:Date><tt:Year>2026</tt:Year><tt:Month>6</tt:Month><tt:Day>1</tt:Day></tt:Date>\
             </tt:UTCDateTime></tds:SystemDateAndTime>"
            .to_owned(),
        "GetDeviceInformation" => format!(
            "<tds:Manufacturer>Crowd</tds:Manufacturer><tds:Model>One of many</tds:Model>\
             <tds:FirmwareVersion>1.0</tds:FirmwareVersion><tds:SerialNumber>C{number}</tds:SerialNumber>\
             <tds:HardwareId>crowd</tds:HardwareId>"
        ),
        "GetNetworkInterfaces" => {
            let [high, low] = number.to_be_bytes();
            format!(
                "<tds:NetworkInterfaces token=\"eth0\"><tt:Enabled>true</tt:Enabled><tt:Info><tt:Name>eth0</tt:Name>\
                 <tt:HwAddress>02:00:5e:20:{high:02x}:{low:02x}</tt:HwAddress><tt:MTU>1500</tt:MTU></tt:Info>\
                 </tds:NetworkInterfaces>"
            )
        }
        _ => format!(
            "<tds:Scopes><tt:ScopeDef>Fixed</tt:ScopeDef>\
             <tt:ScopeItem>onvif://www.onvif.org/name/camera-{number}</tt:ScopeItem></tds:Scopes>"
        ),
    };
    Some(format!(
        "<tds:{operation}Response>{inside}</tds:{operation}Response>"
    ))
}

fn response(number: u16, request: &str) -> String {
    let fault = "<s:Fault><s:Code><s:Value>s:Receiver</s:Value></s:Code>\
                 <s:Reason><s:Text xml:lang=\"en\">not implemented</s:Text></s:Reason></s:Fault>";
    let (status, inside) = match result(number, request) {
        Some(inside) => ("200 OK", inside),
        None => ("500 Internal Server Error", fault.to_owned()),
    };
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <s:Envelope xmlns:s=\"http://www.w3.org/2003/05/soap-envelope\" \
         xmlns:tds=\"http://www.onvif.org/ver10/device/wsdl\" \
         xmlns:tt=\"http://www.onvif.org/ver10/schema\"><s:Body>{inside}</s:Body></s:Envelope>"
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/soap+xml; charset=utf-8\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the next request of a connection as text; `None` when the client has closed it.
async fn next_request(stream: &mut TcpStream, seen: &mut Vec<u8>) -> Result<Option<String>> {
    loop {
        let text = String::from_utf8_lossy(seen).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .map_or(Ok(0), |(_, value)| value.trim().parse::<usize>())
                .context("the length is no number")?;
            if body.len() >= length {
                seen.drain(..(head.len() + 4 + length).min(seen.len()));
                return Ok(Some(text));
            }
        }
        if stream.read_buf(seen).await? == 0 {
            return Ok(None);
        }
        if seen.len() > 1 << 16 {
            bail!("a request is too long");
        }
    }
}

/// Cameras while they run.
#[derive(Debug)]
struct Crowd {
    cameras: Cameras,
    requests: AtomicU64,
    /// Tasks of the cameras that are switched on.
    listening: Mutex<BTreeMap<u16, JoinHandle<()>>>,
}

impl Crowd {
    fn listening(&self) -> MutexGuard<'_, BTreeMap<u16, JoinHandle<()>>> {
        self.listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn switch_on(self: &Arc<Self>, number: u16) -> Result<()> {
        let port = self.cameras.port.saturating_add(number);
        let address = SocketAddr::from((self.cameras.address, port));
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}"))?;
        let crowd = Arc::clone(self);
        let task = tokio::spawn(async move {
            // The connections end with the task.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                let crowd = Arc::clone(&crowd);
                // Ignore a connection that breaks.
                connections.spawn(async move { crowd.serve(number, stream).await.ok() });
            }
        });
        self.listening().insert(number, task);
        Ok(())
    }

    async fn switch_off(&self, number: u16) {
        let task = self.listening().remove(&number);
        if let Some(task) = task {
            task.abort();
            // The task was aborted.
            let _ = task.await;
        }
    }

    async fn serve(&self, number: u16, mut stream: TcpStream) -> Result<()> {
        let mut seen = Vec::new();
        while let Some(request) = next_request(&mut stream, &mut seen).await? {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let response = response(number, &request);
            if !self.cameras.drips(number) {
                stream.write_all(response.as_bytes()).await?;
                continue;
            }
            for byte in response.bytes().chain(std::iter::repeat(b' ')) {
                stream.write_all(&[byte]).await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        Ok(())
    }

    /// Executes `hello 3`, `bye 3`, `on 3`, `off 3` or `requests`, which prints the number of requests since the last time.
    async fn obey(self: &Arc<Self>, line: &str) -> Result<()> {
        if line == "requests" {
            let requests = self.requests.swap(0, Ordering::Relaxed);
            return leafhost_peers::say(&requests.to_string());
        }
        let (what, number) = line.split_once(' ').context("no number")?;
        let number = number.parse().context("no camera has that number")?;
        match what {
            "hello" => self.announce("Hello", number),
            "bye" => self.announce("Bye", number),
            "on" => self.switch_on(number).await,
            "off" => {
                self.switch_off(number).await;
                Ok(())
            }
            _ => bail!("knows `hello N`, `bye N`, `on N`, `off N` and `requests`, not {line:?}"),
        }
    }

    fn announce(&self, action: &str, number: u16) -> Result<()> {
        let body = format!("<d:{action}>{}</d:{action}>", self.cameras.about(number));
        let message = envelope(action, number, "", &body);
        let socket = std::net::UdpSocket::bind((self.cameras.address, 0))?;
        socket.send_to(message.as_bytes(), self.cameras.group()?)?;
        Ok(())
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let crowd = Arc::new(Crowd {
        cameras: Cameras::parse(),
        requests: AtomicU64::new(0),
        listening: Mutex::default(),
    });
    for number in 0..crowd.cameras.count {
        crowd.switch_on(number).await?;
    }
    let group = crowd.cameras.group()?;
    let socket = UdpSocket::bind(group).await?;
    match (crowd.cameras.address, group) {
        (IpAddr::V4(address), _) => socket.join_multicast_v4(GROUP_V4, address)?,
        (IpAddr::V6(_), SocketAddr::V6(group)) => {
            socket.join_multicast_v6(&GROUP_V6, group.scope_id())?;
        }
        (IpAddr::V6(_), SocketAddr::V4(_)) => bail!("the group is of the other version"),
    }
    let answering = tokio::spawn(answer_probes(Arc::clone(&crowd), socket));
    let runtime = tokio::runtime::Handle::current();
    let obeying = tokio::task::spawn_blocking(move || {
        leafhost_peers::ready()?;
        leafhost_peers::obey(|line| runtime.block_on(crowd.obey(line)))
    });
    tokio::select! {
        answered = answering => answered?,
        obeyed = obeying => obeyed?,
    }
}
