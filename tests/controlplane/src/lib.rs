//! Real Kubernetes API servers for tests: etcd and kube-apiserver, of any version in `versions.txt`, on free
//! loopback ports, over TLS, with RBAC and fixed users. All processes end with the process that started them, however it ends.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use controlplane::{ControlPlane, User, Version};
//!
//! let server = ControlPlane::builder(Version::V1_13).audit_log().start().await?;
//! server.apply_manifests("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n").await?;
//! let creator = server.client(User::Creator);
//! server.stop().await;
//! # Ok(())
//! # }
//! ```

mod assets;
mod builder;
mod manifest;
mod nodes;
pub mod pool;
mod port;
mod process;
mod ready;
mod second;
pub mod seconds;
mod server;
mod snapshot;
mod tls;
mod user;
mod version;

pub use builder::Builder;
pub use port::free_port;
pub use second::ApiServer;
pub use server::{ControlPlane, Servers};
pub use snapshot::Snapshot;
pub use user::User;
pub use version::{Feature, Version};
