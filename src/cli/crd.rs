//! `scpol crd`: prints the CustomResourceDefinition, for servers of any age.

use crate::api::crd;
use anyhow::Result;
use clap::{Args, ValueEnum};
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct CrdOptions {
    /// The version of apiextensions.k8s.io: `v1` from Kubernetes 1.16 on, `v1beta1` below
    #[arg(long, value_enum, default_value_t)]
    api: Api,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Api {
    #[default]
    V1,
    V1beta1,
}

pub(super) fn run(options: &CrdOptions, out: &mut impl Write) -> Result<()> {
    let yaml = match options.api {
        Api::V1 => crd::yaml(&crd::v1())?,
        Api::V1beta1 => crd::yaml(&crd::v1beta1())?,
    };
    Ok(out.write_all(yaml.as_bytes())?)
}
