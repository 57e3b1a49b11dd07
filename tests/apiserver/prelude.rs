//! What the tests on servers begin with.

pub(crate) use crate::support::*;
pub(crate) use crate::world::*;
pub(crate) use anyhow::{Context, Result, bail, ensure};
pub(crate) use controlplane::{ControlPlane, Feature, User, Version};
pub(crate) use serde_json::{Value, json};
pub(crate) use std::time::{Duration, Instant};
