//! All communication with the API server outside the engines: the connection, discovery, stored objects, the leader
//! lease and Events for users.

pub mod access;
pub mod answer;
pub mod api;
pub mod client;
pub mod discovery;
pub mod events;
mod fitting;
pub mod keep;
pub mod lease;
pub mod namespaces;
pub mod object;
pub mod pages;
pub mod policies;
pub mod proxy;
pub mod revisions;
pub mod rights;
pub mod servers;
pub mod watch;
