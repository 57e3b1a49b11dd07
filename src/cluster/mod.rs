//! Everything that talks to the API server and is no engine: how we connect, what the server can do, what is stored
//! there, who leads, and what we tell users through events.

pub mod access;
pub mod client;
pub mod discovery;
pub mod events;
pub mod lease;
pub mod mirror;
pub mod namespaces;
pub mod object;
pub mod openapi;
pub mod pages;
pub mod policies;
pub mod proxy;
