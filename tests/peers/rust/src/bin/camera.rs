//! One camera, played by the crate `onvif-server`: WS-Discovery over IPv4, the device service, with or without a password.
#![allow(missing_docs, reason = "a binary")]

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use clap::Parser;
use onvif_server::{
    DeviceInfo, DeviceService, MediaProfile, MediaService, NetworkInterface, OnvifError,
    OnvifServer, Scope, ScopeDefinition,
};
use uuid::Uuid;

/// Options of the camera.
#[derive(Debug, Clone, Parser)]
struct Camera {
    /// IP address of the camera.
    #[arg(long)]
    address: Ipv4Addr,
    #[arg(long, default_value_t = 80)]
    port: u16,
    /// Endpoint reference of the camera.
    #[arg(long)]
    uuid: Uuid,
    #[arg(long, default_value = "Peer Works")]
    manufacturer: String,
    #[arg(long, default_value = "Eye 1")]
    model: String,
    #[arg(long, default_value = "02:00:5e:10:00:01")]
    mac: String,
    /// User name; with it nearly everything needs a user name and password.
    #[arg(long, requires = "password")]
    user: Option<String>,
    #[arg(long)]
    password: Option<String>,
    /// Number of video sources, each with one profile.
    #[arg(long, default_value_t = 1)]
    channels: u16,
}

#[async_trait]
impl DeviceService for Camera {
    async fn get_device_information(&self) -> Result<DeviceInfo, OnvifError> {
        Ok(DeviceInfo {
            manufacturer: self.manufacturer.clone(),
            model: self.model.clone(),
            firmware_version: "1.2.3".to_owned(),
            serial_number: format!("SN-{}", self.uuid.simple()),
            hardware_id: "eye".to_owned(),
        })
    }

    async fn get_scopes(&self) -> Result<Vec<Scope>, OnvifError> {
        let scopes = [
            "onvif://www.onvif.org/Profile/Streaming",
            "onvif://www.onvif.org/name/Front%20door",
        ];
        Ok(scopes
            .map(|item| Scope {
                scope_def: ScopeDefinition::Fixed,
                scope_item: item.to_owned(),
            })
            .into())
    }

    async fn get_network_interfaces(&self) -> Result<Vec<NetworkInterface>, OnvifError> {
        Ok(vec![NetworkInterface {
            token: "eth0".to_owned(),
            enabled: true,
            name: "eth0".to_owned(),
            hw_address: self.mac.clone(),
            mtu: 1500,
        }])
    }
}

#[async_trait]
impl MediaService for Camera {
    fn profiles(&self) -> Vec<MediaProfile> {
        (1..=self.channels)
            .map(|n| MediaProfile {
                token: format!("profile{n}"),
                name: format!("Channel {n}"),
                video_source_token: format!("source{n}"),
                width: 1920,
                height: 1080,
                encoding: "H264".to_owned(),
                framerate: 30,
                bitrate: 4096,
            })
            .collect()
    }

    async fn get_stream_uri(&self, profile: &str) -> Result<String, OnvifError> {
        Ok(format!("rtsp://{}:554/{profile}", self.address))
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let camera = Camera::parse();
    let address = SocketAddr::from((camera.address, camera.port));
    let mut server = OnvifServer::builder()
        .port(camera.port)
        .advertised_host(&camera.address.to_string())
        .discovery_uuid(camera.uuid)
        .device_service(camera.clone())
        .media_service(camera.clone());
    if let (Some(user), Some(password)) = (&camera.user, &camera.password) {
        server = server.auth(user, password);
    }
    let server = tokio::spawn(server.build()?.run());
    let stay = tokio::task::spawn_blocking(move || {
        leafhost_peers::until_served(address, Some(Ipv4Addr::new(239, 255, 255, 250)))?;
        leafhost_peers::ready()?;
        leafhost_peers::obey(|line| anyhow::bail!("knows no command, not even {line:?}"))
    });
    tokio::select! {
        ended = server => ended?.context("the camera failed"),
        stayed = stay => stayed?,
    }
}
