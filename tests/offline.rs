//! Everything that is tested without a server, in one program: a file is a module here.

mod access;
mod architecture;
mod commands;
mod convert;
mod crd;
mod golden;
mod kept;
mod laws;
mod lint;
mod manifests;
mod policies;
mod undo;
