//! What the functions and operators do. The table of [`library`](super::library) has their names and types.

pub(crate) mod arithmetic;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod format;
pub(crate) mod formats;
pub(crate) mod lists;
pub(crate) mod moment;
pub(crate) mod network;
pub(crate) mod optional;
pub(crate) mod quantity;
pub(crate) mod regexes;
pub(crate) mod semver;
pub(crate) mod sets;
pub(crate) mod strings;
pub(crate) mod url;
