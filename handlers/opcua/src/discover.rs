//! Runs one `discover` call: the tasks of a search run concurrently, then it answers.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use leafhost_sdk::{Device, Discovery, Event, Host, Request};

use crate::client::{self, AT_ONCE, Budget, Conversation};
use crate::details::Details;
use crate::device::{comparison_text, device};
use crate::memory::Memory;
use crate::messages::{Application, Endpoint};
use crate::mirrored;
use crate::search::{Answers, Outcome, Results, Search, SettingsResult, Task};
use crate::security_settings::SecuritySettings;
use crate::table::Table;
use crate::url::Url;

/// Time limit for a conversation, Hello included.
const CONVERSATION_LIMIT: Duration = Duration::from_secs(6);
/// Delay before a server that answered last time is asked again: one lost connection must not withdraw a device.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time between calls, as in Akri.
const INTERVAL: Duration = Duration::from_secs(10);
/// Eighths of the answer's bytes that devices' ids, URLs and attributes may use.
const EIGHTHS: u32 = 6;
/// Upper bound of bytes of a device's texts besides its id and URL.
const DEVICE_TEXT: usize = 1_024;

/// Runs the search and builds the answer.
pub fn discover(request: &Request<Details>, host: &Host) -> Discovery {
    let before = Memory::read(request.cursor.as_deref());
    let results = host.block_on(search(&request.details, &before, host));
    answer(request, host, &before, results)
        .wake_after(INTERVAL)
        .wake_on_network()
}

async fn search(details: &Details, memory: &Memory, host: &Host) -> Results {
    let budget = Budget::default();
    let mut search = Search::new(details, memory);
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < AT_ONCE
            && budget.has_connections()
            && let Some(task) = search.next()
        {
            running.push(run_task(host, &budget, task));
        }
        match host.within(host.time_left(), running.next()).await {
            Some(Some(outcome)) => search.take(outcome),
            // All tasks are done, or the time is up.
            Some(None) | None => break,
        }
    }
    search.finish()
}

async fn run_task(host: &Host, budget: &Budget, task: Task) -> Outcome {
    match task {
        Task::Ask {
            asked,
            url,
            settings,
            records,
            known,
            known_application,
        } => {
            let mut answers = Answers::default();
            let mut first = true;
            let ended = loop {
                let ended = host
                    .within(
                        CONVERSATION_LIMIT,
                        ask(
                            host,
                            budget,
                            &url,
                            settings,
                            records,
                            known_application.as_deref(),
                            &mut answers,
                        ),
                    )
                    .await
                    .unwrap_or(Err(client::Error::Slow(CONVERSATION_LIMIT)));
                let lost = !answers.alive || matches!(ended, Err(client::Error::Lost(_)));
                let here = known || answers.alive;
                if !first || answers.servers.is_some() || !lost || !here {
                    break ended;
                }
                first = false;
                host.sleep(RETRY_DELAY).await;
            };
            answers.cut = ended.as_ref().is_err_and(client::Error::is_bound);
            answers.error = ended.err().map(|error| error.in_full());
            if let (Some(_), Some(error)) = (&answers.servers, &answers.error) {
                host.debug(format!("{}: {error}", url.as_str()));
            }
            Outcome::Asked(asked, answers)
        }
        Task::LookUp(name) => {
            let found = client::look_up(host, &name).await;
            Outcome::LookedUp(name, found)
        }
        Task::Confirm {
            peer,
            url,
            listed,
            addresses,
            settings,
            known,
        } => {
            let mut tries = if known { 2 } else { 1 };
            let found = loop {
                let found = confirm(host, budget, &url, &listed, &addresses, settings).await;
                tries -= 1;
                if tries == 0 || found.is_ok() {
                    break found;
                }
                host.sleep(RETRY_DELAY).await;
            };
            Outcome::Confirmed(peer, found.map_err(|error| error.in_full()))
        }
    }
}

async fn ask(
    host: &Host,
    budget: &Budget,
    url: &Url,
    settings: bool,
    records: bool,
    known_application: Option<&str>,
    answers: &mut Answers,
) -> Result<(), client::Error> {
    answers.refused = false;
    if answers.addresses.is_empty() {
        answers.addresses = client::addresses(host, url)
            .await
            .map_err(client::Error::LookUp)?;
    }
    let mut conversation = Conversation::begin(host, &answers.addresses, url, budget).await?;
    answers.alive = true;
    let opened = conversation.open().await;
    opened.inspect_err(|error| answers.refused = error.is_refusal(known_application.is_some()))?;
    let found = conversation.servers(url.as_str()).await?;
    let servers = answers.servers.insert(found);
    let discovery = servers.items.iter().find(|server| server.kind == 3);
    let own = match servers.items.as_slice() {
        [alone] => Some(alone),
        _ => discovery,
    };
    let knows_others = discovery.is_some();
    let is_mirrored = mirrored::is_mirrored(&servers.items, url);
    // Endpoints from before are outdated if the list no longer has their application.
    let is_replaced = servers.items.len() > 1
        && known_application
            .is_some_and(|uri| !servers.items.iter().any(|server| server.uri == uri));
    if settings || is_replaced {
        let listed = own.and_then(Application::url);
        answers.settings = Some(match conversation.endpoints(url, listed).await {
            // The connection can still be used after these errors.
            answer @ (Ok(_) | Err(client::Error::Messages(_))) => settings_of(answer),
            Err(error) => return Err(error),
        });
    }
    if is_mirrored {
        answers.plain = match conversation.servers("").await {
            Ok(plain) => Some(plain),
            Err(client::Error::Messages(_)) => None,
            Err(error) => return Err(error),
        };
    }
    if records && knows_others {
        // This service is optional for a discovery server (OPC 10000-4, 5.5.3); many answer that they lack it.
        answers.records = Some(conversation.records().await?);
    }
    conversation.close().await;
    Ok(())
}

async fn confirm(
    host: &Host,
    budget: &Budget,
    url: &Url,
    listed: &str,
    addresses: &[std::net::IpAddr],
    settings: bool,
) -> Result<SettingsResult, client::Error> {
    if !url.is_opc_tcp() {
        client::accepts_connections(host, addresses, url.port(), budget).await?;
        let why = "endpoints are asked for over opc.tcp only";
        return Ok(Some(Err(why.to_owned())));
    }
    let conversation = Conversation::begin(host, addresses, url, budget).await?;
    if !settings {
        return Ok(None);
    }
    let endpoints = endpoints(conversation, url, listed);
    let left = CONVERSATION_LIMIT.saturating_sub(client::HELLO_LIMIT);
    let endpoints = host.within(left, endpoints).await;
    let slow = Err(client::Error::Slow(left));
    Ok(Some(settings_of(endpoints.unwrap_or(slow))))
}

async fn endpoints(
    mut conversation: Conversation<'_>,
    url: &Url,
    listed: &str,
) -> Result<Vec<Endpoint>, client::Error> {
    conversation.open().await?;
    let endpoints = conversation.endpoints(url, Some(listed)).await?;
    conversation.close().await;
    Ok(endpoints)
}

fn settings_of(
    endpoints: Result<Vec<Endpoint>, client::Error>,
) -> Result<SecuritySettings, String> {
    let endpoints = endpoints.map_err(|error| error.in_full())?;
    SecuritySettings::of(&endpoints).ok_or_else(|| "the server lists none".to_owned())
}

fn answer(request: &Request<Details>, host: &Host, before: &Memory, results: Results) -> Discovery {
    let devices = devices(request, host, &results);
    for skip in results.skipped.sorted() {
        host.skipped(&skip.subject, &skip.rule, &skip.reason);
    }
    let mut memory = results.memory;
    let discovery = if results.complete {
        let same = memory.answer(
            before,
            &devices.iter().map(comparison_text).collect::<String>(),
        );
        let needs_full_answer = request
            .events
            .iter()
            .any(|event| matches!(event, Event::First | Event::Changed));
        if same && !needs_full_answer {
            Discovery::unchanged()
        } else {
            Discovery::complete(devices)
        }
    } else {
        Discovery::partial(devices)
    };
    match memory.write() {
        Some(bytes) => discovery.cursor(bytes),
        None => discovery,
    }
}

/// Returns at most as many devices as an answer may have. If not all fit, known servers take precedence.
fn devices(request: &Request<Details>, host: &Host, results: &Results) -> Vec<Device> {
    let most = usize::try_from(request.budget.devices).unwrap_or(usize::MAX);
    let mut text = usize::try_from(request.budget.answer_bytes / 8 * EIGHTHS).unwrap_or(usize::MAX);
    let mut kept = Table::default();
    for known in [true, false] {
        for found in results.found.sorted().filter(|found| found.known == known) {
            let url = found.location.url.as_str();
            let size = DEVICE_TEXT + 2 * url.len();
            if kept.len() >= most || text < size {
                let reason = "there are more servers than an answer may have devices";
                host.skipped(url, "devices", reason);
                continue;
            }
            text -= size;
            kept.put(url, ());
        }
    }
    let mut devices = Vec::new();
    for found in results.found.sorted() {
        if kept.has(found.location.url.as_str()) {
            devices.push(device(
                &found.location,
                &found.application,
                found.settings.as_ref(),
            ));
        }
    }
    devices
}
